// The table of processes: its columns, its order and its filter.
//
// Invariant: unknown values are last in every order.
import { writeAddress } from "./page-address.js";
import { bytes, dateAndClock, duration, plural } from "./page-charts.js";
import { cells, el, fill, keyed, setText } from "./page-elements.js";
import { parts, state } from "./page-state.js";

const SHOWN_ROWS = 50;

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

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

export function showProcesses() {
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

export function processSection() {
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
