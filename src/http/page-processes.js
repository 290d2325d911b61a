// The table of processes: its columns, its order and its filter.
//
// Invariant: unknown values are last in every order. At a chosen moment, a row holds what is recorded for that moment, and facts that name
// their own time; nothing in it is a value of now.
import { writeAddress } from "./page-address.js";
import { bytes, dateAndClock, duration, plural } from "./page-charts.js";
import { cells, el, fill, keyed, setText } from "./page-elements.js";
import { isRecordedThen, migName, parts, state, usedThen } from "./page-state.js";

const SHOWN_ROWS = 50;

/// The columns of the process table: title, text, sort key, and whether the column is numeric.
const COLUMNS = [
  ["GPU", (p) => (p.mig == null ? String(p.gpu) : `${p.gpu}, ${p.mig}`), (p) => p.gpu * 100 + (p.mig_index ?? 0), true],
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
  ["ended", (p) => (p.ended == null ? "" : p.ended + exitText(p)), (p) => p.ended_seconds, true],
];

/// How a process ended, if the kernel reported it.
export function exitText({ exit_status: status, signal }) {
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

/// The processes that are listed now.
function processesNow() {
  return state.listed.processes.map((process) => {
    const { alive, ended_seconds: seconds, mig_index: index } = process;
    const ended = alive ? null : seconds == null ? "yes" : `${duration(seconds)} ago`;
    return { ...process, mig: index == null ? null : `MIG ${index}`, ended };
  });
}

/// The processes that held memory at the chosen moment, with what they held. What is known about a process now and does not depend on the
/// moment is added: its peak, and when it began and ended.
function processesThen() {
  const rows = [];
  for (const { gpu, uuid, who, startedAt, series } of state.processes.values()) {
    const used = usedThen(series);
    if (used == null) continue;
    const index = state.migDevices.get(who.mig_uuid)?.index;
    // A process whose start is not known may be another one with its pid.
    const found = state.listed.processes.find((process) => process.uuid === uuid && process.pid === who.pid
      && Math.abs(process.started_at - startedAt) < 1 && (index == null || process.mig_index === index)) ?? { alive: true };
    const { alive, peak_bytes, peak_at, first_seen_at, ended_seconds, exit_status, signal } = found;
    // A peak after the moment is one of another time.
    const isThen = peak_at <= state.at;
    const ended = alive ? null : ended_seconds == null ? "yes" : dateAndClock(state.listed.at - ended_seconds);
    const mig = who.mig_uuid == null ? null : migName(who.mig_uuid);
    rows.push({ ...who, gpu, uuid, mig, mig_index: index, used_bytes: used, alive: true,
      started_at: startedAt, peak_bytes: isThen ? peak_bytes : null, peak_at: isThen ? peak_at : null,
      first_seen_at, ended, ended_seconds, exit_status, signal });
  }
  return rows.sort((a, b) => b.used_bytes - a.used_bytes);
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

export function showProcesses() {
  const wanted = parts.filter.value.trim().toLowerCase();
  const isLive = state.at == null;
  const all = isLive ? processesNow() : processesThen();
  const matches = all.filter((p) => [p.name, p.user, p.workload, String(p.pid)].some((text) => text?.toLowerCase().includes(wanted)));
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
  const key = (p) => `${p.uuid} ${p.mig ?? ""} ${p.pid} ${p.type}`;
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
  const left = isLive ? state.listed.more_processes : state.leftOutProcesses;
  const why = isLive ? "by the configuration" : "of the history of this time span, in which the largest come first";
  const out = left > 0 ? `; ${left} more are left out ${why}` : "";
  setText(parts.count, `${matches.length} of ${plural(all.length, "process", "processes")}${out}`);
  setText(parts.processesTitle, isLive ? "Processes" : `Processes at ${dateAndClock(state.at)}`);
  parts.noProcess.hidden = isLive || all.length > 0;
  setText(parts.noProcess, isRecordedThen() ? "No process is recorded for this time." : "Nothing is recorded for this time.");
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

export function processSection() {
  parts.filter = el("input", { type: "search", name: "filter", input: () => { showProcesses(); writeAddress(); }, autocomplete: "off" });
  parts.count = el("span", { class: "soft" });
  parts.processesTitle = el("h2", { id: "processes" }, "Processes");
  parts.noProcess = el("p", { class: "none", hidden: true });
  parts.rows = el("tbody");
  parts.headings = COLUMNS.map(([name, , , number], index) =>
    el("th", { scope: "col", class: number ? "n" : null }, el("button", { type: "button", click: () => sortBy(index) }, name)));
  parts.more = el("button", { type: "button", hidden: true, click: () => { state.all = !state.all; showProcesses(); } });
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...parts.headings)), parts.rows);
  return el("section", { class: "card list", "aria-labelledby": "processes" },
    el("div", { class: "head" }, parts.processesTitle, el("label", {}, "Filter ", parts.filter), parts.count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of processes" }, table), parts.noProcess, parts.more);
}
