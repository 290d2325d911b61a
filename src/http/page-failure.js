// A failed allocation: what its figures prove, the stack that asked, and what the memory was, as bars and tables.
//
// Invariant: all bars have one scale, that of the largest call site, and every amount that a bar shows is also text.
import { bytes, duration } from "./page-charts.js";
import { el, filled, headings } from "./page-elements.js";

/// The roles, each of which has a colour of its own (`r-…`). What belongs to no role has that of the last one.
const ROLES = ["parameters", "gradients", "optimizer_state", "activations", "kv_cache", "other", "unknown"];

export function failureParts({ out_of_memory: failed, facts = [] }) {
  const list = facts.length > 0 ? [el("ul", { class: "facts" }, ...facts.map((fact) => el("li", {}, fact)))] : [];
  const frames = failed?.frames ?? [];
  const stack = el("details", {}, el("summary", {}, "The stack that asked, innermost first"),
    el("ol", {}, ...frames.map((frame) => el("li", {}, frame))));
  return [...list, ...(frames.length > 0 ? [stack] : []), ...memoryParts(failed?.memory)];
}

/// What the memory of the process was: by role and call site, by growth and by module.
function memoryParts(memory) {
  if (!memory) return [];
  const roles = Object.entries(memory.roles).filter(([, held]) => held > 0).sort((a, b) => b[1] - a[1]);
  const legend = roles.map(([role, held]) => el("li", {}, el("span", { class: `swatch ${colour(role)}` }), `${words(role)} ${bytes(held)}`));
  return [
    el("p", {}, `Live memory of the framework, ${duration(memory.seconds_before)} before the failure:`),
    el("ul", { class: "legend" }, ...legend),
    table(["memory", "role", "call site"], siteRows(memory)),
    ...growthParts(memory.grew),
    ...moduleParts(memory),
  ];
}

/// A row for each call site, with its memory stacked by role, and one for each kind of memory without a call site.
function siteRows(memory) {
  const sites = new Map();
  for (const { site, role, bytes: held } of memory.sites) sites.set(site, [...(sites.get(site) ?? []), [role, held]]);
  const rest = [["other call sites", memory.other_bytes], ["not recorded", memory.unrecorded_bytes]].filter(([, held]) => held > 0);
  const rows = [...sites, ...rest.map(([name, held]) => [name, [[null, held]]])];
  const total = (parts) => parts.reduce((sum, [, held]) => sum + held, 0);
  const most = Math.max(...rows.map(([, parts]) => total(parts)));
  return rows.map(([site, parts]) => {
    const amounts = parts.map(([role, held]) => (parts.length > 1 ? `${words(role)} ${bytes(held)}` : words(role)));
    const row = filled([bytes(total(parts)), amounts.join(", "), site]);
    row.lastChild.append(bar(parts, most));
    return row;
  });
}

function bar(parts, most) {
  const pieces = parts.map(([role, held]) => {
    const piece = el("span", { class: colour(role) });
    piece.style.width = `${(100 * held) / most}%`;
    return piece;
  });
  return el("span", { class: "bar stacked", "aria-hidden": "true" }, ...pieces);
}

function growthParts(grew) {
  if (!grew || grew.sites.length === 0) return [];
  const rows = grew.sites.map((site) => filled([`+${bytes(site.bytes)}`, words(site.role), site.site]));
  return [el("p", {}, `Grew most within the ${grew.seconds} s before that:`), table(["growth", "role", "call site"], rows)];
}

function moduleParts({ modules = [], other_modules_bytes: other }) {
  if (modules.length === 0) return [];
  const rows = modules.map(({ module, bytes: held }) => filled([bytes(held), module]));
  if (other > 0) rows.push(filled([bytes(other), "other modules"]));
  return [el("p", {}, "Parameters, gradients, optimizer state and buffers by module:"), table(["memory", "module"], rows)];
}

function table(names, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "small amounts" }, headings(names), el("tbody", {}, ...rows)));
}

/// The class of a role's colour.
function colour(role) {
  return `r-${ROLES.includes(role) ? role : "unknown"}`;
}

function words(role) {
  return (role ?? "").replace("_", " ");
}
