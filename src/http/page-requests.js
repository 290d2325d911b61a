// Requests to the exporter: what it answers becomes the page's state.
//
// Invariant: the series hold what was recorded between `state.from` and `state.to`, and nothing that the exporter no longer knows.
import { Series } from "./page-charts.js";
import { state } from "./page-state.js";

const TIMEOUT_MS = 10000;
/// Process lists arrive later than memory samples, and peaks of calls up to 3 s later, so the last seconds are requested again.
const LATE_SECONDS = 4;
/// The shortest time span that a chart shows, in seconds.
const LEAST_SPAN = 60;

export async function get(path, kind = "json") {
  const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!response.ok) throw Object.assign(new Error(`the exporter answered ${response.status}`), { status: response.status });
  return response[kind]();
}

export async function loadMachine() {
  [state.answer, state.listed] = await Promise.all([get("/api/v1/gpus"), get("/api/v1/processes")]);
  for (const device of state.answer.gpus.flatMap((gpu) => gpu.mig_devices)) state.migDevices.set(device.uuid, identity(device));
}

/// Requests the data that the charts lack: everything at first, and afterwards only what was recorded since the last
/// response.
export async function loadHistory() {
  const [generation, [span, , step]] = [state.generation, state.span];
  // The moment of a fixed chart is in its middle, unless it was just now.
  const now = state.at == null ? state.answer.at : Math.min(state.answer.at, state.at + span / 2);
  const whole = state.next == null || now - state.next > span || now < state.to - 5;
  const from = whole ? Math.floor((now - span) / step) * step : state.next;
  const query = `from=${from.toFixed(3)}&to=${now.toFixed(3)}&step=${step}`;
  const recorded = await get(`/api/v1/history?of=all&${query}`);
  if (generation !== state.generation) return;
  if (whole || Math.abs(recorded.recorded_since - (state.since ?? recorded.recorded_since)) > 1) {
    for (const known of [state.gpus, state.migs, state.processes, state.workloads]) known.clear();
  }
  // A chart covers no more time than was recorded, so that the first few minutes of data fill the whole chart.
  [state.to, state.from] = [recorded.to, Math.max(recorded.to - span, Math.min(recorded.recorded_since, recorded.to - LEAST_SPAN))];
  state.since = recorded.recorded_since;
  state.next = Math.floor((recorded.to - LATE_SECONDS) / step) * step;
  for (const series of recorded.series) {
    const { mig_uuid: uuid, mig_index: index } = series;
    if (index != null && !state.migDevices.has(uuid)) state.migDevices.set(uuid, identity({ ...series, index }));
  }
  const devices = recorded.series.filter((series) => !series.process && series.workload == null);
  mergeAll(state.gpus, devices.filter((series) => !series.mig_uuid), (series) => series.uuid, recorded.from, step);
  mergeAll(state.migs, devices.filter((series) => series.mig_uuid), (series) => series.mig_uuid, recorded.from, step);
  const processKey = ({ uuid, process, started_at: startedAt }) => seriesKey(uuid, process.mig_uuid, `${process.pid} ${startedAt ?? ""}`);
  mergeAll(state.processes, recorded.series.filter((series) => series.process), processKey, recorded.from, step);
  const workloadKey = ({ uuid, mig_uuid: migUuid, workload }) => seriesKey(uuid, migUuid, workload);
  mergeAll(state.workloads, recorded.series.filter((series) => series.workload != null), workloadKey, recorded.from, step);
  state.leftOut = recorded.more_workloads;
  const more = recorded.more_series - recorded.more_workloads;
  state.leftOutProcesses = whole ? more : Math.max(more, state.leftOutProcesses);
}

/// What identifies a MIG device besides its UUID.
function identity({ index, gpu_instance, compute_instance, profile }) {
  return { index, gpu_instance, compute_instance, profile };
}

/// The key of a process or a workload on a GPU or a MIG device.
function seriesKey(uuid, migUuid, what) {
  return `${uuid} ${migUuid ?? ""} ${what}`;
}

/// Merges an answer into the known series. A series that the answer lacks has become unknown.
function mergeAll(known, answered, key, from, step) {
  const lacking = new Set(known.keys());
  for (const series of answered) {
    let id = key(series);
    // Processes whose start is unknown can have had one pid.
    while (known.has(id) && !lacking.has(id)) id += "'";
    lacking.delete(id);
    const entry = known.get(id) ?? { series: new Series() };
    const { gpu, uuid, process: who, started_at: startedAt, workload: name, allocatable_bytes: allocatable } = series;
    Object.assign(entry, { gpu, uuid, who, startedAt, name, allocatable });
    entry.series.merge(series.memory.points, from, state.from, step);
    entry.peaks = (entry.peaks ?? []).filter((peak) => series.peaks?.every((other) => other.minute !== peak.minute) ?? true);
    entry.peaks = [...entry.peaks, ...(series.peaks ?? [])].filter((peak) => peak.at >= state.from);
    const earlier = (entry.calls ?? []).filter(([at]) => at < from);
    entry.calls = [...earlier, ...(series.peaks_from_calls ?? [])].filter(([at]) => at >= state.from);
    known.set(id, entry);
  }
  for (const id of lacking) {
    const { series } = known.get(id);
    series.merge([], from, state.from, step);
    if (!series.points.some((point) => point[0] >= state.from || point[3] != null)) known.delete(id);
  }
}
