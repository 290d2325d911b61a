// The live part of the page. It shows charts in place of the table that the server wrote, and polls the API for new
// values.
//
// Invariants: text from the server is only ever set as text or as an attribute, never as markup; nothing is loaded from another host;
// a value that is not known is shown as unknown and never as 0.
import {  bytes, clean, clock, colours, dateAndClock, drawAxes, drawBand, drawCursor, drawLimit, drawPeaks, drawSlowReadings, drawStack,
  duration, peaks, plural, prepare, readColours, scales, Series, slowReadings,
} from "./page-charts.js";

const POLL_MS = 2000;
const POLL_EVENTS_MS = 5000;
const LONGEST_PAUSE_MS = 30000;
const TIMEOUT_MS = 10000;
/// The selectable time spans: length in seconds, name, and length of each part of a chart in seconds.
const SPANS = [[300, "5 min", 0.25], [900, "15 min", 1], [1800, "30 min", 2], [3600, "1 h", 4], [7200, "2 h", 8]];
/// Process lists arrive later than memory samples, so the last few seconds are requested again.
const LATE_SECONDS = 3;
/// The shortest time span that a chart shows, in seconds.
const LEAST_SPAN = 60;
const SHOWN_ROWS = 50;
const SHOWN_OWNERS = 7;
const SHOWN_HOLDERS = 3;

// Elements

/// Creates an element. An attribute that is a function is an event handler; a child is a node or a string.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value != null && value !== false) node.setAttribute(name, clean(value));
  }
  node.append(...children.map((child) => (child instanceof Node ? child : clean(child))));
  return node;
}

/// Sets the text of a node if it differs, so that a selection within unchanged text is kept.
function setText(node, text) {
  const cleaned = clean(text);
  if (node.textContent !== cleaned) node.textContent = cleaned;
}

/// Makes the children of a node match the items. A child whose key is still among the items is kept, with its focus and
/// its state.
function keyed(parent, items, key, create, update) {
  const before = parent.shown ?? new Map();
  const after = new Map();
  for (const item of items) {
    let id = key(item);
    while (after.has(id)) id += "'";
    after.set(id, [before.get(id) ?? create(item), item]);
  }
  for (const [id, node] of before) if (!after.has(id)) node.remove();
  let index = 0;
  parent.shown = new Map();
  for (const [id, [node, item]] of after) {
    update(node, item);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    parent.shown.set(id, node);
    index += 1;
  }
}

// State

const state = {
  span: SPANS[0],
  at: null, // the moment to which the charts are fixed; null: they follow the time
  gpu: null, // the UUID of the GPU that the address names
  incident: null, // the id of the incident that the address names
  generation: 0,
  from: 0,
  to: 0,
  since: Infinity, // when the recorder started
  next: null,
  gpus: new Map(), // uuid → { series, allocatable }
  processes: new Map(), // key → { uuid, who, series }
  workloads: new Map(), // key → { uuid, name, series }
  leftOut: 0, // the number of workloads without a series
  events: [],
  answer: null,
  listed: { processes: [], more_processes: 0 },
  recorder: true,
  failures: 0,
  lastAnswer: null,
  paused: false,
  asked: false, // whether a time was asked for that has not been loaded yet
  sort: { column: null, descending: true },
  all: false,
};
const cards = new Map(); // uuid → Card
const parts = {};

// The address

/// Reads what the address says: the time span in seconds, a moment, a GPU, a filter and an incident. What makes no sense is ignored.
function readAddress() {
  const named = new URLSearchParams(location.search);
  state.span = SPANS.find(([seconds]) => String(seconds) === named.get("span")) ?? SPANS[0];
  const at = Number(named.get("at"));
  state.at = at > 0 && at < 1e11 ? at : null;
  [state.gpu, state.incident] = [named.get("gpu"), named.get("incident")];
  parts.filter.value = named.get("filter") ?? "";
  parts.span.value = String(SPANS.indexOf(state.span));
}

/// The address of what is shown, with these differences.
function address(differences = {}) {
  const { at, gpu, incident } = state;
  const shown = { span: state.span === SPANS[0] ? null : state.span[0], at, gpu, filter: parts.filter.value || null, incident, ...differences };
  const named = Object.entries(shown).filter(([, value]) => value != null);
  return named.length > 0 ? `/?${new URLSearchParams(named)}` : "/";
}

/// Writes what is shown into the address, so that it can be passed on.
function writeAddress(differences = {}) {
  for (const name of ["at", "gpu", "incident"]) if (name in differences) state[name] = differences[name];
  history.replaceState(null, "", address());
}

/// Fixes the charts to a moment, or lets them follow the time again.
function goTo(at, gpu) {
  writeAddress({ at, gpu });
  load();
  for (const card of cards.values()) card.unpin();
}

/// Loads what was asked for once, even while the page is paused.
function load() {
  state.generation += 1;
  state.next = null;
  state.asked = true;
  round();
}

/// A link that fixes the charts to a moment of a GPU, and that can be copied.
function momentLink(at, gpu, text) {
  // To the microsecond, as the recorder has it: a rounded time can be before the peak, or before anything is known.
  const exact = Number(at.toFixed(6));
  return el("a", { href: address({ at: exact, gpu }), click: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    goTo(exact, gpu);
  } }, text);
}

// Requests

async function get(path, kind = "json") {
  const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!response.ok) throw Object.assign(new Error(`the exporter answered ${response.status}`), { status: response.status });
  return response[kind]();
}

async function loadMachine() {
  [state.answer, state.listed] = await Promise.all([get("/api/v1/gpus"), get("/api/v1/processes")]);
}

/// Requests the data that the charts lack: everything at first, and afterwards only what was recorded since the last
/// response.
async function loadHistory() {
  const [generation, [span, , step]] = [state.generation, state.span];
  // The moment of a fixed chart is in its middle, unless it was just now.
  const now = state.at == null ? state.answer.at : Math.min(state.answer.at, state.at + span / 2);
  const whole = state.next == null || now - state.next > span || now < state.to - 5;
  const from = whole ? Math.floor((now - span) / step) * step : state.next;
  const query = `from=${from.toFixed(3)}&to=${now.toFixed(3)}&step=${step}`;
  const recorded = await get(`/api/v1/history?of=all&${query}`);
  if (generation !== state.generation) return;
  if (whole || Math.abs(recorded.recorded_since - (state.since ?? recorded.recorded_since)) > 1) {
    for (const known of [state.gpus, state.processes, state.workloads]) known.clear();
  }
  // A chart covers no more time than was recorded, so that the first few minutes of data fill the whole chart.
  [state.to, state.from] = [recorded.to, Math.max(recorded.to - span, Math.min(recorded.recorded_since, recorded.to - LEAST_SPAN))];
  state.since = recorded.recorded_since;
  state.next = Math.floor((recorded.to - LATE_SECONDS) / step) * step;
  const entire = recorded.series.filter((series) => !series.process && series.workload == null && !series.mig_uuid);
  mergeAll(state.gpus, entire, (series) => series.uuid, recorded.from, step);
  const processKey = ({ uuid, process, started_at: startedAt }) => seriesKey(uuid, process.mig_uuid, `${process.pid} ${startedAt ?? ""}`);
  mergeAll(state.processes, recorded.series.filter((series) => series.process), processKey, recorded.from, step);
  const workloadKey = ({ uuid, mig_uuid: migUuid, workload }) => seriesKey(uuid, migUuid, workload);
  mergeAll(state.workloads, recorded.series.filter((series) => series.workload != null), workloadKey, recorded.from, step);
  state.leftOut = recorded.more_workloads;
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
    Object.assign(entry, { uuid: series.uuid, who: series.process, name: series.workload, allocatable: series.allocatable_bytes });
    entry.series.merge(series.memory.points, from, state.from, step);
    entry.peaks = (entry.peaks ?? []).filter((peak) => series.peaks?.every((other) => other.minute !== peak.minute) ?? true);
    entry.peaks = [...entry.peaks, ...(series.peaks ?? [])].filter((peak) => peak.at >= state.from);
    known.set(id, entry);
  }
  for (const id of lacking) {
    const { series } = known.get(id);
    series.merge([], from, state.from, step);
    if (!series.points.some((point) => point[0] >= state.from || point[3] != null)) known.delete(id);
  }
}

async function loadEvents() {
  const [events, incidents] = await Promise.all([get("/api/v1/events"), get("/api/v1/incidents")]);
  state.events = events.events.sort((a, b) => b.at - a.at);
  showEvents(state.events);
  showIncidents(incidents.incidents);
}

// The polling round

let timer = null;
let eventsAt = 0;

async function refresh() {
  await loadMachine();
  if (state.recorder || state.failures > 0) {
    try {
      const due = performance.now() - eventsAt >= POLL_EVENTS_MS - POLL_MS / 2;
      await Promise.all([loadHistory(), due ? loadEvents() : null]);
      if (due) eventsAt = performance.now();
      state.recorder = true;
    } catch (error) {
      if (error.status !== 404) throw error;
      state.recorder = false;
    }
  }
}

async function round() {
  clearTimeout(timer);
  timer = null;
  if ((state.paused && !state.asked) || document.hidden || round.running) return;
  round.running = true;
  state.asked = false;
  const { generation } = state;
  try {
    await refresh();
    [state.failures, state.lastAnswer] = [0, Date.now() / 1000];
    // What was asked for in the meantime is loaded first: the values of another time would be shown as its own.
    if (generation === state.generation) show();
  } catch (error) {
    state.failures += 1;
    if (!(error instanceof TypeError || error.name === "TimeoutError" || error.status)) console.error(error);
  } finally {
    round.running = false;
  }
  showStatus();
  timer = setTimeout(round, generation === state.generation ? pause() : 0);
}

function pause() {
  return Math.min(POLL_MS * 2 ** Math.min(state.failures, 8), LONGEST_PAUSE_MS);
}

function showStatus() {
  const lost = state.failures > 0;
  const since = state.lastAnswer == null ? "" : ` since ${clock(state.lastAnswer)}`;
  let text = state.at == null ? "Live" : `At ${dateAndClock(state.at)}: the charts. Figures and tables: now`;
  parts.follow.hidden = state.at == null;
  if (state.paused) text = `Paused${since}`;
  else if (lost) text = `No answer${since}: trying again every ${pause() / 1000} s`;
  setText(parts.status, text);
  document.body.classList.toggle("lost", lost);
}

// Owners

function ownerName(who) {
  return who.workload ?? who.user ?? who.name ?? `pid ${who.pid}`;
}

const palette = new Map(); // owner → index of its colour

/// The owners of a GPU's memory within the time shown, largest first; the smallest are combined into one entry.
function owners(uuid) {
  const found = new Map();
  for (const { uuid: on, name, series } of state.workloads.values()) {
    const figures = on === uuid && series.figures(state.from, state.to);
    if (!figures || figures.most === 0) continue;
    const owner = found.get(name) ?? { name, series: [], most: 0, used: undefined };
    owner.series.push(series);
    owner.most += figures.most;
    if (series.last()) owner.used = (owner.used ?? 0) + series.last();
    found.set(name, owner);
  }
  const sorted = [...found.values()].sort((a, b) => b.most - a.most);
  const rest = sorted.splice(SHOWN_OWNERS);
  if (rest.length > 0) {
    const used = rest.reduce((sum, owner) => (owner.used == null ? sum : (sum ?? 0) + owner.used), undefined);
    sorted.push({ name: `${rest.length} others`, series: rest.flatMap((owner) => owner.series), used });
  }
  for (const owner of sorted) {
    if (!palette.has(owner.name)) palette.set(owner.name, palette.size % 7);
    owner.colour = owner.used == null ? colours.ended : colours[`s${palette.get(owner.name) + 1}`];
  }
  // Owners that have ended are stacked on top, so that they do not shift the owners that are still running.
  return sorted.sort((a, b) => (a.used == null) - (b.used == null));
}

/// What the processes held at a moment at which the GPU's memory use was `used`, as text, as far as their charts show it.
function heldNear(uuid, time, used) {
  const held = [...state.processes.values()]
    .filter((entry) => entry.uuid === uuid)
    .map(({ who, series }) => ({ who, used: series.at(time)?.[3] ?? 0 }))
    .filter((process) => process.used > 0)
    .sort((a, b) => b.used - a.used);
  if (held.length === 0 || used == null) return "";
  const names = held.slice(0, SHOWN_HOLDERS).map(({ who, used: own }) => `${who.name ?? "?"} ${who.pid} of ${ownerName(who)} ${bytes(own)}`);
  if (held.length > SHOWN_HOLDERS) names.push("and others");
  const sum = held.reduce((all, process) => all + process.used, 0);
  return `; processes held ${bytes(sum)} of the last: ${names.join(", ")}`;
}

// The card of a GPU

class Card {
  view = { cursor: null, selection: null, anchor: null };

  constructor(gpu) {
    [this.uuid, this.index] = [gpu.uuid, gpu.gpu];
    const id = `gpu-${gpu.gpu}-${cards.size}`;
    this.title = el("h2", { id: `${id}-title` });
    this.state = el("span", { class: "state" });
    this.stats = el("dl", { class: "stats" });
    this.band = el("canvas", { class: "band", "aria-hidden": "true" });
    this.stack = el("canvas", { class: "stack", "aria-hidden": "true" });
    this.fact = el("p", { class: "fact", id: `${id}-fact` });
    this.output = el("output", { class: "reading", "aria-live": "polite" });
    this.chart = el("div", {
      class: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-describedby": `${id}-fact`,
      keydown: (event) => this.key(event),
      pointerdown: (event) => this.press(event),
      pointermove: (event) => this.move(event),
      pointerup: () => this.release(),
      pointercancel: () => this.release(),
      pointerleave: () => this.leave(),
      focus: () => this.read(),
      blur: (event) => this.output.contains(event.relatedTarget) || this.clear(),
    }, this.band, el("p", { class: "caption" }, "by owner"), this.stack);
    this.owners = el("ul", { class: "owners" });
    this.mig = el("tbody");
    this.migBox = el("div", { class: "scroll", hidden: true }, el("table", { class: "small" },
      el("caption", {}, "MIG devices"), headings(["device", "profile", "used of total", "peak", "not attributed"]), this.mig));
    this.peaks = el("tbody");
    this.peakBox = el("details", { toggle: () => this.showPeaks() }, el("summary", {}, "Peaks in this time span, and what held the memory"),
      el("div", { class: "scroll" }, el("table", { class: "small" }, headings(["time", "peak", "holders"]), this.peaks)));
    this.recorded = el("div", {}, this.chart, this.fact, this.output, this.owners, this.peakBox);
    this.node = el("section", { class: "card gpu", "aria-labelledby": `${id}-title` },
      el("div", { class: "head" }, this.title, this.state), this.stats, this.recorded, this.migBox);
    new ResizeObserver(() => this.draw()).observe(this.band);
  }

  /// Shows the values of a GPU; `gpu` is undefined if the driver no longer lists it.
  show(gpu) {
    if (gpu) this.gpu = gpu;
    const { name, up, total_bytes: total } = this.gpu;
    setText(this.title, `GPU ${this.gpu.gpu} ${name ?? ""}`);
    this.chart.setAttribute("aria-label", `Memory of GPU ${this.gpu.gpu}, ${state.at == null ? "last" : "in"} ${state.span[1]}`);
    const works = Boolean(gpu) && up;
    setText(this.state, works ? "up" : gpu ? "not readable" : "gone");
    this.state.classList.toggle("problem", !works);
    this.total = total ?? this.total;
    this.showStats(gpu ?? {});
    this.showMig(gpu?.mig_devices ?? []);
    this.recorded.hidden = !state.recorder;
    this.draw();
    this.showFact();
    this.showOwners();
    this.showPeaks();
    if (this.uuid === state.gpu) this.pin();
  }

  /// Shows what the address names: scrolls to this GPU, and moves the cursor to the moment.
  pin() {
    if (!parts.scrolled) requestAnimationFrame(() => this.node.scrollIntoView({ block: "start" }));
    parts.scrolled = true;
    if (state.at == null || this.pinned === state.at) return;
    [this.pinned, this.view] = [state.at, { cursor: state.at, selection: null, anchor: null }];
    this.read();
  }

  unpin() {
    if (this.pinned == null) return;
    [this.pinned, this.view] = [null, { cursor: null, selection: null, anchor: null }];
    setText(this.output, "");
    this.draw();
  }

  showStats(gpu) {
    const used = gpu.used_bytes == null ? "unknown" : `${bytes(gpu.used_bytes)} of ${bytes(gpu.total_bytes)}`;
    const rows = [["used", used]];
    const add = (name, value, text) => value != null && rows.push([name, text(value)]);
    add("window peak", gpu.window_peak_bytes, bytes);
    add("peak since start", gpu.peak_bytes, bytes);
    add("not attributed", gpu.unattributed_bytes, bytes);
    add("needed", gpu.needed_bytes, bytes);
    add("reserved", gpu.reserved_bytes, bytes);
    add("utilization", gpu.utilization_ratio, (ratio) => `${(100 * ratio).toFixed(0)} %`);
    add("temperature", gpu.temperature_celsius, (degrees) => `${degrees.toFixed(0)} °C`);
    const limit = gpu.power_limit_watts ? ` of ${gpu.power_limit_watts.toFixed(0)} W` : "";
    add("power", gpu.power_watts, (watts) => `${watts.toFixed(0)} W${limit}`);
    add("not in /proc", gpu.processes_invisible, (count) => plural(count, "process", "processes"));
    const create = ([name]) => el("div", {}, el("dt", {}, name), el("dd"));
    keyed(this.stats, rows, ([name]) => name, create, (node, [, value]) => setText(node.lastChild, value));
  }

  showMig(devices) {
    this.migBox.hidden = devices.length === 0;
    const texts = (device) => [
      String(device.index), device.profile ?? "unknown",
      device.used_bytes == null ? "unknown" : `${bytes(device.used_bytes)} of ${bytes(device.total_bytes)}`,
      device.peak_bytes == null ? "" : bytes(device.peak_bytes),
      device.unattributed_bytes == null ? "" : bytes(device.unattributed_bytes),
    ];
    keyed(this.mig, devices, (device) => device.uuid, (device) => cells(texts(device).length),
      (row, device) => fill(row, texts(device)));
  }

  series() {
    return state.gpus.get(this.uuid)?.series;
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.paint();
    });
  }

  paint() {
    const series = this.series();
    if (!series || !this.band.clientWidth) return;
    const limit = state.gpus.get(this.uuid).allocatable;
    const highest = this.total ?? limit ?? 1;
    const band = prepare(this.band);
    this.scale = scales(band, state.from, state.to, highest);
    drawAxes(band.pen, this.scale, 4);
    drawBand(band.pen, this.scale, series);
    drawLimit(band.pen, this.scale, limit);
    drawSlowReadings(band.pen, this.scale, series);
    drawPeaks(band.pen, this.scale, this.recordedPeaks().map(({ at, used_bytes: used }) => ({ at, used })));
    drawCursor(band.pen, this.scale, this.view);
    const stack = prepare(this.stack);
    const scale = scales(stack, state.from, state.to, highest);
    drawAxes(stack.pen, scale, 2);
    drawStack(stack.pen, scale, owners(this.uuid), series, state.leftOut > 0);
    drawCursor(stack.pen, scale, this.view);
  }

  /// What the chart shows, as a sentence.
  showFact() {
    const figures = this.series()?.figures(state.from, state.to);
    if (!figures) return setText(this.fact, "Nothing is recorded for this time.");
    const readings = slowReadings(this.series(), state.from, state.to).map(([, value]) => value ?? -1);
    const seen = Math.max(-1, ...readings);
    const peak = this.recordedPeaks().find((one) => one.used_bytes === figures.most);
    const [at, held] = peak ? [clock(peak.at, 2), `, ${peak.held_by}`] : [clock(figures.mostAt), ""];
    const slow = seen < 0 ? "None of the readings every 15 s falls within this time." : `A reading every 15 s saw at most ${bytes(seen)}.`;
    setText(this.fact, `Highest: ${bytes(figures.most)} at ${at}${held}. ${slow}`);
  }

  showOwners() {
    const list = owners(this.uuid);
    const create = () => el("li", {}, el("span", { class: "swatch" }), el("span"));
    keyed(this.owners, list, (owner) => owner.name, create, (node, owner) => {
      node.firstChild.style.backgroundColor = owner.colour;
      node.classList.toggle("soft", owner.used == null);
      setText(node.lastChild, `${owner.name} ${owner.used == null ? "ended" : bytes(owner.used)}`);
    });
  }

  /// The recorded peaks of the time that is shown, oldest first: the highest of each part of it in which the memory use changed.
  recordedPeaks() {
    const series = this.series();
    const recorded = state.gpus.get(this.uuid)?.peaks ?? [];
    return series ? peaks(series, recorded, state.since, state.from, state.to) : [];
  }

  showPeaks() {
    if (!this.peakBox.open || !this.series()) return;
    keyed(this.peaks, this.recordedPeaks().reverse(), (peak) => `${peak.minute} ${peak.at}`, (peak) => {
      const row = cells(3);
      row.firstChild.append(momentLink(peak.at, this.uuid, clock(peak.at, 2)));
      return row;
    }, (row, peak) => [bytes(peak.used_bytes), peak.held_by].forEach((text, index) => setText(row.children[index + 1], text)));
  }

  // The cursor and the selection

  /// Writes out the values at the cursor or in the selection.
  read() {
    const { cursor, selection } = this.view;
    if (selection) return this.readSpan(this.series(), selection);
    if (cursor == null) return setText(this.output, "Arrow keys move a cursor; with Shift they select a time span.");
    const point = this.series()?.at(cursor);
    const held = point ? heldNear(this.uuid, cursor, point[3]) : "";
    const text = point ? `min ${bytes(point[1])}, max ${bytes(point[2])}, last ${bytes(point[3])}${held}` : "unknown";
    this.output.replaceChildren(clean(`${clock(cursor, 1)}: ${text} `), momentLink(cursor, this.uuid, "Link"));
    this.draw();
  }

  readSpan(series, selection) {
    const [from, to] = [Math.min(...selection), Math.max(...selection)];
    const figures = series?.figures(from, to);
    const text = figures
      ? `min ${bytes(figures.least)}, mean ${bytes(figures.mean)}, max ${bytes(figures.most)} at ${clock(figures.mostAt, 2)}`
      : "unknown";
    const href = `/api/v1/history?uuid=${encodeURIComponent(this.uuid)}&from=${from.toFixed(3)}&to=${to.toFixed(3)}`;
    const link = el("a", { href, download: `gpu-${this.index}-${from.toFixed(0)}.json` }, "JSON");
    this.output.replaceChildren(clean(`${clock(from, 1)} to ${clock(to, 1)} (${duration(to - from)}): ${text} `), link);
    this.draw();
  }

  /// Requests the selected time at the finest resolution, in parts as short as 10 ms.
  async readFinely() {
    const { selection } = this.view;
    if (!selection || selection[0] === selection[1]) return;
    const [from, to] = [Math.min(...selection), Math.max(...selection)];
    try {
      const answer = await get(`/api/v1/history?uuid=${encodeURIComponent(this.uuid)}&from=${from.toFixed(3)}&to=${to.toFixed(3)}`);
      const fine = new Series();
      fine.points = answer.series.find((series) => !series.mig_uuid)?.memory.points ?? [];
      if (this.view.selection === selection) this.readSpan(fine, selection);
    } catch {
      // The figures computed from the chart stay in place.
    }
  }

  key(event) {
    const span = state.to - state.from;
    const steps = { ArrowLeft: -span / 150, ArrowRight: span / 150, PageUp: -span / 15, PageDown: span / 15, Home: -span, End: span };
    if (event.key === "Escape") return this.clear();
    const step = steps[event.key];
    if (step == null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const before = this.view.cursor ?? state.to;
    const cursor = Math.min(Math.max(before + step, state.from), state.to);
    const anchor = event.shiftKey ? this.view.selection?.[0] ?? before : null;
    this.view = { cursor, selection: anchor == null ? null : [anchor, cursor], anchor: null };
    this.read();
    clearTimeout(this.later);
    if (anchor != null) this.later = setTimeout(() => this.readFinely(), 400);
  }

  timeOf(event) {
    const time = this.scale?.time(event.clientX - this.band.getBoundingClientRect().left) ?? state.to;
    return Math.min(Math.max(time, state.from), state.to);
  }

  press(event) {
    if (event.button !== 0 || !this.scale) return;
    this.chart.setPointerCapture(event.pointerId);
    this.view = { cursor: this.timeOf(event), selection: null, anchor: this.timeOf(event) };
    this.read();
  }

  move(event) {
    if (!this.scale) return;
    const { anchor, selection } = this.view;
    const cursor = this.timeOf(event);
    // A selection that is complete stays until the next press.
    if (anchor == null && selection) return;
    this.view = { cursor, anchor, selection: anchor == null ? null : [anchor, cursor] };
    this.read();
  }

  release() {
    if (this.view.anchor == null) return;
    this.view = { ...this.view, anchor: null };
    this.readFinely();
  }

  leave() {
    if (this.view.selection || this.view.anchor != null || document.activeElement === this.chart) return;
    this.clear();
  }

  clear() {
    // The cursor or selection is kept while the pointer or the focus is on the output, so that the link in it can be reached.
    if (this.chart.matches(":focus-within") === false && this.output.matches(":hover, :focus-within")) return;
    this.view = { cursor: null, selection: null, anchor: null };
    setText(this.output, "");
    this.draw();
  }
}

// Tables

function headings(names) {
  return el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name))));
}

function cells(count) {
  return el("tr", {}, ...Array.from({ length: count }, () => el("td")));
}

function fill(row, texts) {
  texts.forEach((text, index) => setText(row.children[index], text));
}

/// The columns of the process table: title, text, sort key, and whether the column is numeric.
const COLUMNS = [
  ["GPU", (p) => (p.mig_index == null ? String(p.gpu) : `${p.gpu}, MIG ${p.mig_index}`), (p) => p.gpu * 100 + (p.mig_index ?? 0), true],
  ["name", (p) => p.name ?? "unknown", (p) => p.name],
  ["pid", (p) => String(p.pid), (p) => p.pid, true],
  ["user", (p) => p.user ?? "unknown", (p) => p.user],
  ["workload", (p) => p.workload ?? "", (p) => p.workload],
  ["used", (p) => (p.alive ? bytes(p.used_bytes) : ""), (p) => (p.alive ? p.used_bytes ?? 0 : -1), true],
  ["peak", (p) => bytes(p.peak_bytes), (p) => p.peak_bytes, true],
  ["allocated / reserved", ladder, (p) => p.allocator_allocated_bytes, true],
  ["peak at", (p) => moment(p.peak_at), (p) => p.peak_at, true],
  ["held since", (p) => moment(heldSince(p)), heldSince, true],
  ["idle for", (p) => (p.alive && p.idle_seconds != null ? duration(p.idle_seconds) : ""), (p) => (p.alive ? p.idle_seconds : null), true],
  ["ended", (p) => (p.alive ? "" : `${p.ended_seconds == null ? "yes" : `${duration(p.ended_seconds)} ago`}${exitText(p)}`), (p) => p.ended_seconds, true],
];

/// How a process ended, if the kernel reported it.
function exitText({ exit_status: status, signal }) {
  if (signal != null) return `, signal ${signal}`;
  return status == null ? "" : `, exit status ${status}`;
}

/// The allocated and the reserved memory of a process's allocators, if the process reports them.
function ladder({ allocator_allocated_bytes: allocated, allocator_reserved_bytes: reserved }) {
  if (allocated == null && reserved == null) return "";
  return [allocated, reserved].map((value) => (value == null ? "unknown" : bytes(value))).join(" / ");
}

function moment(unix) {
  return unix == null ? "" : dateAndClock(unix);
}

/// When the process was first on the GPU, as far as that is known. A process that was already there when the exporter
/// started has been there for longer than was recorded.
function heldSince({ first_seen_at: seen, started_at: started }) {
  return seen == null || seen - state.since > 2 ? seen : started ?? seen;
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

function showProcesses() {
  const wanted = parts.filter.value.trim().toLowerCase();
  const matches = state.listed.processes.filter((p) => [p.name, p.user, p.workload, String(p.pid)].some((text) => text?.toLowerCase().includes(wanted)));
  const { column, descending } = state.sort;
  if (column != null) {
    const value = COLUMNS[column][2];
    matches.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      // Unknown values are last in both sort orders.
      return left == null || right == null || !descending ? compare(left, right) : compare(right, left);
    });
  }
  const shown = state.all ? matches : matches.slice(0, SHOWN_ROWS);
  const key = (p) => `${p.uuid} ${p.mig_index ?? ""} ${p.pid} ${p.type}`;
  const create = () => {
    const row = cells(COLUMNS.length);
    COLUMNS.forEach(([, , , number], index) => number && row.children[index].classList.add("n"));
    return row;
  };
  keyed(parts.rows, shown, key, create, (row, process) => {
    row.classList.toggle("soft", !process.alive);
    fill(row, COLUMNS.map(([, text]) => text(process)));
  });
  const more = matches.length - shown.length;
  parts.more.hidden = more === 0 && !(state.all && matches.length > SHOWN_ROWS);
  setText(parts.more, more > 0 ? `+${more} more` : "Show fewer");
  const left = state.listed.more_processes;
  const out = left > 0 ? `; ${left} more are left out by the configuration` : "";
  setText(parts.count, `${matches.length} of ${plural(state.listed.processes.length, "process", "processes")}${out}`);
}

function sortBy(index) {
  const { column, descending } = state.sort;
  state.sort = { column: index, descending: column === index ? !descending : Boolean(COLUMNS[index][3]) };
  parts.headings.forEach((heading, at) => {
    const order = state.sort.descending ? "descending" : "ascending";
    if (at === index) heading.setAttribute("aria-sort", order);
    else heading.removeAttribute("aria-sort");
  });
  showProcesses();
}

// Events and incidents

function processText(event) {
  const of = event.workload ?? event.user;
  return `${event.name ?? "?"} ${event.pid}${of ? ` of ${of}` : ""}`;
}

/// The kinds of incidents, in words.
const KINDS = {
  ended_at_peak: "ended at the memory limit",
  out_of_memory: "out of memory",
  near_limit: "nearly full",
  gpu_lost: "GPU lost",
  memory_xid: "memory error",
  on_demand: "requested",
};

/// The text for each kind of event.
const SENTENCES = {
  exporter_started: () => "the exporter started; nothing before this is known",
  driver_opened: (e) => `the driver ${e.version ?? ""} was opened`,
  driver_closed: (e) => `the driver was closed${e.problem ? `: ${e.problem}` : ""}`,
  gpu_lost: () => "does not respond",
  gpu_stalled: () => "a driver call does not return",
  gpu_back: () => "responds again",
  xid: (e) => `Xid ${e.xid}${e.count > 1 ? `, ${e.count} times` : ""}`,
  process_started: (e) => `${processText(e)} appeared`,
  process_ended: (e) => `${processText(e)} ended after ${duration(e.lived_seconds)}${exitText(e)}, highest memory ${bytes(e.peak_bytes)}`,
  out_of_memory: (e) => `${processText(e)} could not allocate ${bytes(e.requested_bytes)} (${e.framework}${e.free_bytes == null ? "" : `, ${bytes(e.free_bytes)} free`})`,
  new_peak: (e) => `highest memory since the start: ${bytes(e.used_bytes)}`,
  reached: (e) => `memory reached ${(100 * e.ratio).toFixed(0)} %: ${bytes(e.used_bytes)}`,
  incident: (e) => `incident ${e.id}`,
};

function eventNode(event) {
  const text = SENTENCES[event.kind]?.(event) ?? event.kind;
  const line = [el("time", {}, dateAndClock(event.at)), event.gpu == null ? "" : el("b", {}, `GPU ${event.gpu}`), text];
  if (event.kind !== "new_peak") return el("li", {}, ...spaced(line));
  return el("li", {}, el("details", {}, el("summary", {}, ...spaced(line)), el("p", {}, event.held_by)));
}

function spaced(pieces) {
  return pieces.filter((piece) => piece !== "").flatMap((piece, index) => (index > 0 ? [" ", piece] : [piece]));
}

function showEvents(events) {
  const key = (event) => `${event.at.toFixed(2)} ${event.kind} ${event.gpu} ${event.pid ?? event.id ?? event.xid ?? event.used_bytes}`;
  keyed(parts.events, events, key, eventNode, () => {});
}

function incidentNode(incident) {
  const body = el("div", { class: "incident" }, "Loading…");
  const details = el("details", { toggle: () => {
    if (details.open) {
      parts.found = true;
      openIncident(details, incident.id, body);
    }
    if (details.open || state.incident === incident.id) writeAddress({ incident: details.open ? incident.id : null });
  } },
    el("summary", {}, ...spaced([el("time", {}, dateAndClock(incident.at)), el("b", {}, `GPU ${incident.gpu}${incident.mig_uuid ? " MIG" : ""}`), el("span")])), body);
  return el("li", {}, details);
}

function repeats(incident) {
  return incident.last_at == null ? "" : ` (${incident.count} times, last ${dateAndClock(incident.last_at)})`;
}

function showIncidents(incidents) {
  parts.noIncident.hidden = incidents.length > 0;
  keyed(parts.incidents, incidents, (incident) => incident.id, incidentNode, (node, incident) => {
    const details = node.firstChild;
    setText(details.querySelector("summary span"), `${KINDS[incident.kind] ?? incident.kind}${repeats(incident)}: ${incident.summary}`);
    if (details.open && details.loaded === false) openIncident(details, incident.id, details.lastChild);
    if (incident.id === state.incident && !parts.found) {
      [parts.found, details.open] = [true, true];
      node.scrollIntoView({ block: "center" });
    }
  });
  parts.missing.hidden = state.incident == null || parts.found || incidents.some((incident) => incident.id === state.incident);
  setText(parts.missing, `The incident ${state.incident} is not kept any longer, or it is one of another machine.`);
}

/// Shows what was recorded for an incident. The incident is requested again as long as the ten seconds that follow it
/// are still being recorded.
async function openIncident(details, id, body) {
  if (details.loaded) return;
  const path = `/api/v1/incidents/${encodeURIComponent(id)}`;
  try {
    const incident = await get(path);
    details.loaded = incident.complete;
    body.replaceChildren(...incidentParts(incident, path));
  } catch (error) {
    setText(body, `It cannot be shown: ${error.message}`);
  }
}

function incidentParts(incident, path) {
  const grew = (by) => (by == null ? "unknown" : `${by < 0 ? "−" : "+"}${bytes(Math.abs(by))}`);
  const rows = incident.processes.map((holder) => {
    const ended = holder.ended ? `${clock(holder.ended.by, 1)}${exitText(holder)}` : "";
    const row = cells(6);
    const held = holder.used_bytes == null ? "" : bytes(holder.used_bytes);
    fill(row, [processText(holder), held, bytes(holder.peak_bytes), grew(holder.grew["10s"]), grew(holder.grew["60s"]), ended]);
    return row;
  });
  if (incident.more_processes > 0) rows.push(el("tr", {}, el("td", { colspan: "6" }, `+${incident.more_processes} more`)));
  const { peak } = incident;
  const left = peak?.left_bytes == null ? "" : `, ${bytes(peak.left_bytes)} left`;
  const highest = peak && `Highest memory use of the GPU: ${bytes(peak.used_bytes)} at ${clock(peak.at, 2)}${left}.`;
  const formats = [["json", ".json", "JSON"], ["text", ".txt", "Text"], ["trace", ".trace.json", "Perfetto trace"]];
  const links = formats.map(([format, ending, name]) =>
    el("a", { href: `${path}?format=${format}`, download: `incident-${incident.id}${ending}` }, name));
  const canvas = el("canvas", { class: "band", "aria-hidden": "true" });
  new ResizeObserver(() => paintIncident(canvas, incident)).observe(canvas);
  return [
    el("p", {}, highest ?? "The GPU's memory is not known."),
    canvas,
    el("div", { class: "scroll" }, el("table", { class: "small" },
      headings(["process", "at the peak", "own peak", "grew in 10 s", "in 60 s", "ended"]), el("tbody", {}, ...rows))),
    el("p", { class: "actions" }, momentLink(incident.at, incident.gpu.uuid, "The GPU at that moment"), ...reportLink(incident), ...links,
      el("button", { type: "button", click: (event) => copyText(event.target, `${path}?format=text`) }, "Copy as text")),
  ];
}

/// A link to the reports about the workload, which say what it held in all and what to request.
function reportLink({ workload }) {
  if (workload == null) return [];
  return [el("a", { href: `/api/v1/reports?${new URLSearchParams({ workload, format: "text" })}` }, "Report of the workload")];
}

function paintIncident(canvas, incident) {
  if (!canvas.clientWidth) return;
  const series = new Series();
  series.points = incident.memory.points;
  const from = series.points[0]?.[0] ?? incident.at;
  const area = prepare(canvas);
  const limit = incident.gpu.allocatable_bytes;
  const scale = scales(area, from, incident.at + 10, limit ?? incident.peak?.used_bytes ?? 1);
  drawAxes(area.pen, scale, 4);
  drawBand(area.pen, scale, series);
  drawLimit(area.pen, scale, limit);
  drawSlowReadings(area.pen, scale, series);
  drawPeaks(area.pen, scale, incident.peak ? [{ at: incident.peak.at, used: incident.peak.used_bytes }] : []);
  drawCursor(area.pen, scale, { cursor: incident.at });
}

/// Copies the text of a response. Browsers offer the clipboard API only to pages loaded over TLS; on other pages, the
/// text is selected and then copied.
async function copyText(button, path) {
  let done = false;
  try {
    const text = await get(path, "text");
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      done = true;
    } else {
      const area = el("textarea", { "aria-hidden": "true", class: "aside" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
  } catch {
    done = false;
  }
  setText(button, done ? "Copied" : "Could not be copied");
  setTimeout(() => setText(button, "Copy as text"), 3000);
}

// The page

function show() {
  const { driver, gpus } = state.answer;
  let problem = "";
  if (!driver.up) problem = driver.problem ? `No GPU can be read: ${driver.problem}` : "Starting: the driver is being opened.";
  else if (gpus.length === 0) problem = "The driver reports no GPU.";
  parts.note.hidden = problem === "";
  parts.note.classList.toggle("problem", Boolean(driver.problem));
  setText(parts.note, problem);
  const known = (version) => version ?? "unknown";
  setText(parts.driver, driver.up ? `Driver ${known(driver.driver_version)}, CUDA ${known(driver.cuda_version)}` : "");
  showCards(gpus);
  showProcesses();
  parts.off.hidden = state.recorder;
  for (const part of parts.recorded) part.hidden = !state.recorder;
  parts.live.hidden = false;
  document.getElementById("table").hidden = true;
}

/// Shows one card for each GPU, including each GPU that is gone, as long as some of its memory values fall within the
/// time shown.
function showCards(gpus) {
  for (const gpu of gpus) if (!cards.has(gpu.uuid)) cards.set(gpu.uuid, new Card(gpu));
  const listed = new Map(gpus.map((gpu) => [gpu.uuid, gpu]));
  for (const [uuid, card] of cards) {
    if (!listed.has(uuid) && !card.series()?.figures(state.from, state.to)) {
      card.node.remove();
      cards.delete(uuid);
    }
  }
  const sorted = [...cards.values()].sort((a, b) => a.index - b.index);
  keyed(parts.cards, sorted, (card) => card.uuid, (card) => card.node, (_, card) => card.show(listed.get(card.uuid)));
}

function chooseSpan(event) {
  state.span = SPANS[event.target.value];
  writeAddress();
  load();
}

function togglePause(event) {
  state.paused = !state.paused;
  event.target.setAttribute("aria-pressed", String(state.paused));
  showStatus();
  round();
}

function controls() {
  const choices = SPANS.map(([, name], index) => el("option", { value: String(index) }, name));
  parts.status = el("span", { role: "status", class: "status" }, "Loading");
  const sample = (kind, text) => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
  const legend = el("ul", { class: "legend", "aria-label": "Legend" },
    sample("s-band", "lowest to highest value"), sample("s-slow", "what a reading every 15 s would have shown"),
    sample("s-limit", "limit: memory that can be allocated"), sample("s-peak", "peak of a minute"),
    sample("s-nobody", "not attributed"), sample("s-ended", "ended"));
  parts.span = el("select", { name: "span", change: chooseSpan }, ...choices);
  const selects = el("label", { class: "recorded" }, "Time span ", parts.span);
  parts.follow = el("button", { type: "button", hidden: true, click: () => goTo(null, null) }, "Follow the time");
  const button = el("button", { type: "button", "aria-pressed": "false", click: togglePause }, "Pause");
  parts.driver = el("span", { class: "soft" });
  parts.recorded.push(legend, selects);
  return [el("div", { class: "controls" }, parts.status, button, parts.follow, selects, parts.driver), legend];
}

function processSection() {
  parts.filter = el("input", { type: "search", name: "filter", input: () => { showProcesses(); writeAddress(); }, autocomplete: "off" });
  parts.count = el("span", { class: "soft" });
  parts.rows = el("tbody");
  parts.headings = COLUMNS.map(([name, , , number], index) =>
    el("th", { scope: "col", class: number ? "n" : null }, el("button", { type: "button", click: () => sortBy(index) }, name)));
  parts.more = el("button", { type: "button", hidden: true, click: () => { state.all = !state.all; showProcesses(); } });
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...parts.headings)), parts.rows);
  return el("section", { class: "card list", "aria-labelledby": "processes" },
    el("div", { class: "head" }, el("h2", { id: "processes" }, "Processes"), el("label", {}, "Filter ", parts.filter), parts.count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of processes" }, table), parts.more);
}

function listSection(title, id, ...content) {
  const section = el("section", { class: "card list", "aria-labelledby": id },
    el("h2", { id }, title), el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-labelledby": id }, ...content));
  parts.recorded.push(section);
  return section;
}

function build() {
  parts.recorded = [];
  parts.note = el("p", { class: "card note", hidden: true, role: "status" });
  parts.off = el("p", { class: "card note", hidden: true },
    "The recorder is switched off (recorder.max-memory-mib), so there are no charts, events and incidents.");
  parts.cards = el("div", { class: "cards" });
  parts.events = el("ul");
  parts.incidents = el("ul");
  parts.noIncident = el("p", { class: "soft" }, "None is kept.");
  parts.missing = el("p", { class: "problem", hidden: true });
  const lists = el("div", { class: "lists" },
    listSection("Incidents", "incidents", parts.noIncident, parts.missing, parts.incidents), listSection("Events", "events", parts.events));
  parts.live = el("div", { id: "live", hidden: true }, ...controls(), parts.note, parts.off, parts.cards, processSection(), lists);
  document.getElementById("main").append(parts.live);
}

function repaint() {
  readColours();
  for (const card of cards.values()) {
    card.draw();
    card.showOwners();
  }
}

readColours();
build();
readAddress();
document.addEventListener("visibilitychange", round);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
round();
