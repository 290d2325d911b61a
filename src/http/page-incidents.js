// Events and incidents, newest first.
//
// Invariant: an incident that is open stays open while the list around it changes.
import { momentLink, writeAddress } from "./page-address.js";
import { bytes, clock, dateAndClock, drawMemory, duration, Series } from "./page-charts.js";
import { el, filled, headings, keyed, setText, spaced } from "./page-elements.js";
import { failureParts } from "./page-failure.js";
import { exitText } from "./page-processes.js";
import { get } from "./page-requests.js";
import { deviceName, parts, state } from "./page-state.js";

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
  out_of_memory: (e) => `${processText(e)} could not allocate ${bytes(e.requested_bytes)} (${e.framework ?? "refused by the driver"}${e.free_bytes == null ? "" : `, ${bytes(e.free_bytes)} free`})`,
  new_peak: (e) => `highest memory since the start: ${bytes(e.used_bytes)}`,
  reached: (e) => `memory reached ${(100 * e.ratio).toFixed(0)} %: ${bytes(e.used_bytes)}`,
  incident: (e) => `incident ${e.id}`,
};

function eventNode(event) {
  const text = SENTENCES[event.kind]?.(event) ?? event.kind;
  const line = [el("time", {}, dateAndClock(event.at)), event.gpu == null ? "" : el("b"), text];
  if (event.kind !== "new_peak") return el("li", {}, ...spaced(line));
  return el("li", {}, el("details", {}, el("summary", {}, ...spaced(line)), el("p", {}, event.held_by)));
}

function nameDevice(node, gpu, migUuid) {
  if (gpu != null) setText(node.querySelector("b"), deviceName(gpu, migUuid));
}

function showEvents(events) {
  const key = (event) => `${event.at.toFixed(2)} ${event.kind} ${event.gpu} ${event.pid ?? event.id ?? event.xid ?? event.used_bytes}`;
  // A MIG device can become known after its events.
  keyed(parts.events, events, key, eventNode, (node, event) => nameDevice(node, event.gpu, event.mig_uuid));
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
    el("summary", {}, ...spaced([el("time", {}, dateAndClock(incident.at)), el("b"), el("span")])), body);
  return el("li", {}, details);
}

function repeats(incident) {
  return incident.last_at == null ? "" : ` (${incident.count} times, last ${dateAndClock(incident.last_at)})`;
}

function showIncidents(incidents) {
  parts.noIncident.hidden = incidents.length > 0;
  keyed(parts.incidents, incidents, (incident) => incident.id, incidentNode, (node, incident) => {
    const details = node.firstChild;
    nameDevice(node, incident.gpu, incident.mig_uuid);
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
    const isOpen = body.querySelector("details")?.open;
    body.replaceChildren(...incidentParts(incident, path));
    if (isOpen) body.querySelector("details").open = true;
  } catch (error) {
    setText(body, `It cannot be shown: ${error.message}`);
  }
}

function incidentParts(incident, path) {
  const grew = (by) => (by == null ? "unknown" : `${by < 0 ? "−" : "+"}${bytes(Math.abs(by))}`);
  const rows = incident.processes.map((holder) => {
    const ended = holder.ended ? `${clock(holder.ended.by, 1)}${exitText(holder)}` : "";
    const held = holder.used_bytes == null ? "" : bytes(holder.used_bytes);
    return filled([processText(holder), held, bytes(holder.peak_bytes), grew(holder.grew["10s"]), grew(holder.grew["60s"]), ended]);
  });
  if (incident.more_processes > 0) rows.push(el("tr", {}, el("td", { colspan: "6" }, `+${incident.more_processes} more`)));
  const { gpu, peak } = incident;
  const left = peak?.left_bytes == null ? "" : `, ${bytes(peak.left_bytes)} left`;
  const highest = peak && `Highest memory use of the ${gpu.mig_uuid ? "MIG device" : "GPU"}: ${bytes(peak.used_bytes)} at ${clock(peak.at, 2)}${left}.`;
  const formats = [["json", ".json", "JSON"], ["text", ".txt", "Text"], ["trace", ".trace.json", "Perfetto trace"]];
  const links = formats.map(([format, ending, name]) =>
    el("a", { href: `${path}?format=${format}`, download: `incident-${incident.id}${ending}` }, name));
  const canvas = el("canvas", { class: "band", "aria-hidden": "true" });
  new ResizeObserver(() => paintIncident(canvas, incident)).observe(canvas);
  return [
    el("p", {}, highest ?? "Its memory is not known."),
    canvas,
    ...failureParts(incident),
    el("div", { class: "scroll" }, el("table", { class: "small" },
      headings(["process", "at the peak", "own peak", "grew in 10 s", "in 60 s", "ended"]), el("tbody", {}, ...rows))),
    el("p", { class: "actions" }, momentLink(incident.at, gpu.mig_uuid ?? gpu.uuid, "The GPU at that moment"), ...reportLink(incident), ...links,
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
  const [limit, { peak }] = [incident.gpu.allocatable_bytes, incident];
  drawMemory(canvas, {
    series, limit, highest: limit ?? peak?.used_bytes ?? 1, peaks: peak ? [peak] : [], from, to: incident.at + 10, lines: 4,
    view: { cursor: incident.at },
  });
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

export async function loadEvents() {
  const [events, incidents] = await Promise.all([get("/api/v1/events"), get("/api/v1/incidents")]);
  showEvents(events.events.sort((a, b) => b.at - a.at));
  showIncidents(incidents.incidents);
}
