// The page's address: what it says is shown, and what is shown is written into it.
//
// Invariant: the address can be passed on. What makes no sense in it is ignored.
import { el } from "./page-elements.js";
import { parts, SPANS, state } from "./page-state.js";

let moved = () => {};

/// Calls the function each time another moment is chosen.
export function whenMoved(action) {
  moved = action;
}

/// Reads what the address says: the time span in seconds, a moment, a GPU, a filter and an incident. What makes no sense is ignored.
export function readAddress() {
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
export function writeAddress(differences = {}) {
  for (const name of ["at", "gpu", "incident"]) if (name in differences) state[name] = differences[name];
  history.replaceState(null, "", address());
}

/// Fixes the charts to a moment, or lets them follow the time again.
export function goTo(at, gpu) {
  writeAddress({ at, gpu });
  moved();
}

/// A link that fixes the charts to a moment of a GPU, and that can be copied.
export function momentLink(at, gpu, text) {
  // To the microsecond, as the recorder has it: a rounded time can be before the peak, or before anything is known.
  const exact = Number(at.toFixed(6));
  return el("a", { href: address({ at: exact, gpu }), click: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    goTo(exact, gpu);
  } }, text);
}
