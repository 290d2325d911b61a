// The chart of a GPU or of a MIG device, with its cursor, its selection, and what it says in words.
//
// Invariant: all charts of a card show the same cursor and selection; only the chart that was used last says what is at them.
import { bytes, clean, clock, drawMemory, duration, ofTotal, peaks, Series, slowReadings } from "./page-charts.js";
import { momentLink } from "./page-address.js";
import { el, setText } from "./page-elements.js";
import { heldNear } from "./page-owners.js";
import { get } from "./page-requests.js";
import { pointThen, state } from "./page-state.js";

/// No cursor and no selection.
export const NOWHERE = { cursor: null, selection: null, anchor: null };

export class Plot {
  /// `card` holds the view that its charts share. `about` says what the chart is about: the `uuid` of the GPU or MIG device, its recorded
  /// `entry()`, the `highest()` value of the axis, whether it is one that `holds(process)`, and the `id` of its elements. A `low` chart has
  /// fewer lines; `below` are elements that belong to the chart.
  constructor(card, about) {
    [this.card, this.about] = [card, about];
    this.band = el("canvas", { class: about.low ? "band low" : "band", "aria-hidden": "true" });
    this.fact = el("p", { class: "fact", id: `${about.id}-fact` });
    this.output = el("output", { class: "reading", "aria-live": "polite" });
    this.chart = el("div", {
      class: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-describedby": `${about.id}-fact`,
      keydown: (event) => this.key(event),
      pointerdown: (event) => this.press(event),
      pointermove: (event) => this.move(event),
      pointerup: () => this.release(),
      pointercancel: () => this.release(),
      pointerleave: () => this.leave(),
      focus: () => this.read(),
      blur: (event) => this.output.contains(event.relatedTarget) || this.clear(),
    }, this.band, ...(about.below ?? []));
    this.nodes = [this.chart, this.fact, this.output];
    new ResizeObserver(() => card.draw()).observe(this.band);
  }

  series() {
    return this.about.entry()?.series;
  }

  /// Shows what was recorded of the device with this name.
  show(name) {
    this.chart.setAttribute("aria-label", `Memory of ${clean(name)}, ${state.at == null ? "last" : "in"} ${state.span[1]}`);
    this.showFact();
  }

  paint() {
    const entry = this.about.entry();
    if (!entry || !this.band.clientWidth) return;
    this.scale = drawMemory(this.band, {
      series: entry.series, limit: entry.allocatable, highest: this.about.highest(), peaks: this.recordedPeaks(), calls: entry.calls,
      from: state.from, to: state.to, lines: this.about.low ? 2 : 4, view: this.card.shownView(),
    });
  }

  /// The recorded peaks of the time that is shown, oldest first: the highest of each part of it in which the memory use changed.
  recordedPeaks() {
    const entry = this.about.entry();
    return entry ? peaks(entry.series, entry.peaks, state.since, state.from, state.to) : [];
  }

  /// The figures that are recorded for the chosen moment, of a device with this total.
  figuresThen(total) {
    const point = pointThen(this.series());
    if (!point) return [["used", "not recorded"]];
    const [, least, most, used] = point;
    const rows = [["used", ofTotal(used, total)]];
    if (least !== most) rows.push([`lowest to highest within ${state.span[2]} s`, `${bytes(least)} to ${bytes(most)}`]);
    return rows;
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
    setText(this.fact, `Highest: ${bytes(figures.most)} at ${at}${held}. ${slow}${this.callFact(figures.most)}`);
  }

  /// What the driver's memory calls tell beyond the highest reading.
  callFact(most) {
    const shown = (this.about.entry()?.calls ?? []).filter(([at, least]) => at >= state.from && at <= state.to && least > most);
    if (shown.length === 0) return "";
    const [at, least] = shown.reduce((best, one) => (one[1] > best[1] ? one : best));
    return ` The driver's memory calls tell of at least ${bytes(least)} at ${clock(at, 1)}, which no reading shows.`;
  }

  // The cursor and the selection

  get view() {
    return this.card.view;
  }

  /// Moves the cursor or the selection of all charts of the card; this one says what is there.
  set view(view) {
    this.card.view = view;
    for (const plot of this.card.plots()) if (plot !== this) setText(plot.output, "");
  }

  /// Writes out the values at the cursor or in the selection.
  read() {
    const { cursor, selection } = this.view;
    if (selection) return this.readSpan(this.series(), selection);
    if (cursor == null) return setText(this.output, "Arrow keys move a cursor; with Shift they select a time span.");
    const point = this.series()?.at(cursor);
    const held = point ? heldNear(this.about.holds, cursor, point[3]) : "";
    const text = point ? `min ${bytes(point[1])}, max ${bytes(point[2])}, last ${bytes(point[3])}${held}` : "unknown";
    this.output.replaceChildren(clean(`${clock(cursor, 1)}: ${text} `), momentLink(cursor, this.about.uuid, "Link"));
    this.card.draw();
  }

  readSpan(series, selection) {
    const [from, to] = [Math.min(...selection), Math.max(...selection)];
    const figures = series?.figures(from, to);
    const text = figures
      ? `min ${bytes(figures.least)}, mean ${bytes(figures.mean)}, max ${bytes(figures.most)} at ${clock(figures.mostAt, 2)}`
      : "unknown";
    const link = el("a", { href: this.finePath(from, to), download: `${this.about.id}-${from.toFixed(0)}.json` }, "JSON");
    this.output.replaceChildren(clean(`${clock(from, 1)} to ${clock(to, 1)} (${duration(to - from)}): ${text} `), link);
    this.card.draw();
  }

  /// The address of a time span of this device at the finest resolution.
  finePath(from, to) {
    return `/api/v1/history?uuid=${encodeURIComponent(this.about.uuid)}&from=${from.toFixed(3)}&to=${to.toFixed(3)}`;
  }

  /// Requests the selected time at the finest resolution, in parts as short as 10 ms.
  async readFinely() {
    const { selection } = this.view;
    if (!selection || selection[0] === selection[1]) return;
    try {
      const answer = await get(this.finePath(Math.min(...selection), Math.max(...selection)));
      const fine = new Series();
      fine.points = answer.series.find((series) => (series.mig_uuid ?? series.uuid) === this.about.uuid)?.memory.points ?? [];
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
    this.view = NOWHERE;
    setText(this.output, "");
    this.card.draw();
  }
}
