// The live part of the page: its frame, its controls, and the rounds in which it polls the API. It shows charts in place of the table
// that the server wrote.
//
// Invariants, also of the scripts that it imports: text from the server is only ever set as text or as an attribute, never as markup;
// nothing is loaded from another host; a value that is not known is shown as unknown and never as 0.
import { goTo, readAddress, whenMoved, writeAddress } from "./page-address.js";
import { Card } from "./page-card.js";
import { clock, dateAndClock, readColours } from "./page-charts.js";
import { el, keyed, setText } from "./page-elements.js";
import { loadEvents } from "./page-incidents.js";
import { processSection, showProcesses } from "./page-processes.js";
import { loadHistory, loadMachine } from "./page-requests.js";
import { cards, parts, SPANS, state } from "./page-state.js";

const POLL_MS = 2000;
const POLL_EVENTS_MS = 5000;
const LONGEST_PAUSE_MS = 30000;

// The polling round

let timer = null;
let eventsAt = -Infinity;

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
  let text = state.at == null ? "Live" : `At ${dateAndClock(state.at)}`;
  parts.follow.hidden = state.at == null;
  if (state.paused) text = `Paused${since}`;
  else if (lost) text = `No answer${since}: trying again every ${pause() / 1000} s`;
  setText(parts.status, text);
  parts.ended.data = state.at == null ? "ended" : "not at that moment";
  document.body.classList.toggle("lost", lost);
}

/// Loads what was asked for once, even while the page is paused.
function load() {
  state.generation += 1;
  state.next = null;
  state.asked = true;
  round();
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
  const recorded = [...state.gpus].filter(([, { series }]) => series.figures(state.from, state.to)).map(([uuid, { gpu }]) => ({ uuid, gpu }));
  for (const gpu of [...gpus, ...recorded]) if (!cards.has(gpu.uuid)) cards.set(gpu.uuid, new Card(gpu));
  const listed = new Map(gpus.map((gpu) => [gpu.uuid, gpu]));
  for (const [uuid, card] of cards) {
    if (!listed.has(uuid) && !card.plot.series()?.figures(state.from, state.to)) {
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
  parts.ended = legend.lastChild.lastChild;
  parts.span = el("select", { name: "span", change: chooseSpan }, ...choices);
  const selects = el("label", { class: "recorded" }, "Time span ", parts.span);
  parts.follow = el("button", { type: "button", hidden: true, click: () => goTo(null, null) }, "Follow the time");
  const button = el("button", { type: "button", "aria-pressed": "false", click: togglePause }, "Pause");
  parts.driver = el("span", { class: "soft" });
  parts.recorded.push(legend, selects);
  return [el("div", { class: "controls" }, parts.status, button, parts.follow, selects, parts.driver), legend];
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
whenMoved(() => {
  load();
  for (const card of cards.values()) card.unpin();
});
document.addEventListener("visibilitychange", round);
// Cards that are out of sight are painted only for printing.
window.addEventListener("beforeprint", () => cards.forEach((card) => card.paint()));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
round();
