// The card of a GPU: its figures, its charts, its owners, its MIG devices and its peaks.
//
// Invariant: a value that is not known is shown as unknown and never as 0.
import { momentLink } from "./page-address.js";
import { bytes, clean, clock, drawAxes, drawBand, drawCursor, drawLimit, drawPeaks, drawSlowReadings, drawStack,
  duration, ofTotal, peaks, plural, prepare, scales, Series, slowReadings,
} from "./page-charts.js";
import { cells, el, fill, headings, keyed, setText } from "./page-elements.js";
import { heldNear, owners } from "./page-owners.js";
import { get } from "./page-requests.js";
import { cards, parts, pointThen, state } from "./page-state.js";

/// The figures of now.
function statsNow(gpu) {
  const rows = [["used", ofTotal(gpu.used_bytes, gpu.total_bytes)]];
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
  return rows;
}

export class Card {
  view = { cursor: null, selection: null, anchor: null };

  constructor(gpu) {
    [this.uuid, this.index, this.gpu] = [gpu.uuid, gpu.gpu, gpu];
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
    const isLive = state.at == null;
    const lacks = gpu ? "not readable" : "gone";
    setText(this.state, isLive ? (works ? "up" : lacks) : works ? "" : `${lacks} now`);
    this.state.classList.toggle("problem", !works);
    this.total = total ?? this.total;
    this.showStats(isLive ? statsNow(gpu ?? {}) : this.statsThen());
    this.showMig((isLive && gpu?.mig_devices) || []);
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

  /// The figures that are recorded for the chosen moment.
  statsThen() {
    const point = pointThen(this.series());
    if (!point) return [["used", "not recorded"]];
    const [, least, most, used] = point;
    const rows = [["used", ofTotal(used, this.total)]];
    if (least !== most) rows.push([`lowest to highest within ${state.span[2]} s`, `${bytes(least)} to ${bytes(most)}`]);
    return rows;
  }

  showStats(rows) {
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
      const none = state.at == null ? "ended" : "not at that moment";
      setText(node.lastChild, `${owner.name} ${owner.used == null ? none : bytes(owner.used)}`);
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
