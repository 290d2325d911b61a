// Who held a GPU's memory, according to the recorded series.
//
// Invariant: an owner keeps its colour as long as the page is open. An owner that holds nothing is grey: if no moment is chosen because it
// has ended, and otherwise because nothing is recorded for it at that moment.
import { bytes, colours } from "./page-charts.js";
import { state, usedThen } from "./page-state.js";

const SHOWN_OWNERS = 7;
const SHOWN_HOLDERS = 3;

function ownerName(who) {
  return who.workload ?? who.user ?? who.name ?? `pid ${who.pid}`;
}

const palette = new Map(); // owner → index of its colour

/// The owners of a GPU's memory within the time shown, largest first; the smallest are combined into one entry. What an owner uses is
/// that of the chosen moment if there is one, and otherwise the last value.
export function owners(uuid) {
  const found = new Map();
  for (const { uuid: on, name, series } of state.workloads.values()) {
    const figures = on === uuid && series.figures(state.from, state.to);
    if (!figures || figures.most === 0) continue;
    const owner = found.get(name) ?? { name, series: [], most: 0, used: undefined };
    owner.series.push(series);
    owner.most += figures.most;
    const used = state.at == null ? series.last() : usedThen(series);
    if (used) owner.used = (owner.used ?? 0) + used;
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
  // Owners that hold nothing are stacked on top, so that they do not shift those that do.
  return sorted.sort((a, b) => (a.used == null) - (b.used == null));
}

/// What the processes for which `holds` is true held at a moment at which the memory use of their GPU or MIG device was `used`, as text, as
/// far as their charts show it.
export function heldNear(holds, time, used) {
  const held = [...state.processes.values()]
    .filter(holds)
    .map(({ who, series }) => ({ who, used: series.at(time)?.[3] ?? 0 }))
    .filter((process) => process.used > 0)
    .sort((a, b) => b.used - a.used);
  if (held.length === 0 || used == null) return "";
  const names = held.slice(0, SHOWN_HOLDERS).map(({ who, used: own }) => `${who.name ?? "?"} ${who.pid} of ${ownerName(who)} ${bytes(own)}`);
  if (held.length > SHOWN_HOLDERS) names.push("and others");
  const sum = held.reduce((all, process) => all + process.used, 0);
  return `; processes held ${bytes(sum)} of the last: ${names.join(", ")}`;
}
