// The card of a GPU: its figures, its charts, its owners, its MIG devices and its peaks.
//
// Invariant: a value that is not known is shown as unknown and never as 0. A card that is out of sight is not painted.
import { momentLink } from "./page-address.js";
import { bytes, clock, drawAxes, drawCursor, drawStack, ofTotal, plural, prepare, scales } from "./page-charts.js";
import { cells, el, headings, keyed, setText, showFigures } from "./page-elements.js";
import { Mig } from "./page-mig.js";
import { owners } from "./page-owners.js";
import { NOWHERE, Plot } from "./page-plot.js";
import { cards, parts, state } from "./page-state.js";

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
  view = NOWHERE;
  migs = new Map(); // UUID → Mig
  isSeen = false;

  constructor(gpu) {
    [this.uuid, this.index, this.gpu] = [gpu.uuid, gpu.gpu, gpu];
    this.id = `gpu-${gpu.gpu}-${cards.size}`;
    this.title = el("h2", { id: `${this.id}-title` });
    this.state = el("span", { class: "state" });
    this.stats = el("dl", { class: "stats" });
    this.stack = el("canvas", { class: "stack", "aria-hidden": "true" });
    this.plot = new Plot(this, {
      uuid: gpu.uuid, id: this.id,
      entry: () => state.gpus.get(this.uuid),
      highest: () => this.highest(),
      holds: (process) => process.uuid === this.uuid,
      below: [el("p", { class: "caption" }, "by owner"), this.stack],
    });
    this.owners = el("ul", { class: "owners" });
    this.migBox = el("div", { class: "migs", hidden: true });
    this.peaks = el("tbody");
    this.peakBox = el("details", { toggle: () => this.showPeaks() }, el("summary", {}, "Peaks in this time span, and what held the memory"),
      el("div", { class: "scroll" }, el("table", { class: "small" }, headings(["time", "peak", "holders"]), this.peaks)));
    this.recorded = el("div", {}, ...this.plot.nodes, this.owners, this.peakBox);
    this.node = el("section", { class: "card gpu", "aria-labelledby": `${this.id}-title` },
      el("div", { class: "head" }, this.title, this.state), this.stats, this.recorded, this.migBox);
    new IntersectionObserver((changes) => {
      this.isSeen = changes.at(-1).isIntersecting;
      this.draw();
    }, { rootMargin: "200px" }).observe(this.node);
  }

  /// Shows the values of a GPU; `gpu` is undefined if the driver no longer lists it.
  show(gpu) {
    if (gpu) this.gpu = gpu;
    const { name, up, total_bytes: total } = this.gpu;
    setText(this.title, `GPU ${this.gpu.gpu} ${name ?? ""}`);
    const isLive = state.at == null;
    const lacks = !gpu ? "gone" : up ? null : "not readable";
    setText(this.state, isLive ? lacks ?? "up" : lacks ? `${lacks} now` : "");
    this.state.classList.toggle("problem", lacks != null);
    this.total = total ?? this.total;
    showFigures(this.stats, isLive ? statsNow(gpu ?? {}) : this.plot.figuresThen(this.total));
    this.plot.show(`GPU ${this.gpu.gpu}`);
    this.showMigs(gpu?.mig_devices ?? [], lacks);
    this.recorded.hidden = !state.recorder;
    this.draw();
    this.showOwners();
    this.showPeaks();
    const mig = this.migs.get(state.gpu);
    if (mig || this.uuid === state.gpu) this.pin(mig);
  }

  /// Shows what the address names: scrolls to this GPU or to its MIG device, and moves the cursor to the moment.
  pin(mig) {
    if (!parts.scrolled) {
      requestAnimationFrame(() => {
        this.node.scrollIntoView({ block: "start" });
        mig?.node.scrollIntoView({ block: "nearest" });
      });
    }
    parts.scrolled = true;
    const plot = mig?.plotOr(this.plot) ?? this.plot;
    if (state.at == null || (this.pinned?.at === state.at && this.pinned.plot === plot)) return;
    this.pinned = { at: state.at, plot };
    plot.view = { ...NOWHERE, cursor: state.at };
    plot.read();
  }

  unpin() {
    if (this.pinned == null) return;
    [this.pinned, this.view] = [null, NOWHERE];
    for (const plot of this.plots()) setText(plot.output, "");
    this.draw();
  }

  /// The charts of the GPU and of its MIG devices.
  plots() {
    return [this.plot, ...[...this.migs.values()].map((mig) => mig.plot)];
  }

  /// The cursor and the selection as the charts show them. Without a cursor, they show the chosen moment.
  shownView() {
    return { ...this.view, cursor: this.view.cursor ?? state.at };
  }

  /// Shows the MIG devices that are listed, and those that are not but have values in the time span shown.
  showMigs(listed, lacks) {
    const found = new Map(listed.map((device) => [device.uuid, device]));
    for (const [uuid, { uuid: gpu, series }] of state.migs) {
      if (gpu === this.uuid && !found.has(uuid) && series.figures(state.from, state.to)) found.set(uuid, undefined);
    }
    for (const uuid of this.migs.keys()) if (!found.has(uuid)) this.migs.delete(uuid);
    for (const uuid of found.keys()) if (!this.migs.has(uuid)) this.migs.set(uuid, new Mig(this, uuid, `${this.id}-${uuid}`));
    const index = ({ uuid }) => state.migDevices.get(uuid)?.index ?? Number.MAX_SAFE_INTEGER;
    const sorted = [...found.keys()].map((uuid) => this.migs.get(uuid)).sort((a, b) => index(a) - index(b));
    this.migBox.hidden = sorted.length === 0;
    const show = (_, mig) => mig.show(found.get(mig.uuid), found.get(mig.uuid) ? lacks : lacks ?? "gone", listed);
    keyed(this.migBox, sorted, (mig) => mig.uuid, (mig) => mig.node, show);
  }

  draw() {
    if (this.drawing || !this.isSeen) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.paint();
    });
  }

  paint() {
    for (const plot of this.plots()) plot.paint();
    const series = this.plot.series();
    if (!series || !this.stack.clientWidth) return;
    const stack = prepare(this.stack);
    const scale = scales(stack, state.from, state.to, this.highest());
    drawAxes(stack.pen, scale, 2);
    drawStack(stack.pen, scale, owners(this.uuid), series, state.leftOut > 0);
    drawCursor(stack.pen, scale, this.shownView());
  }

  /// The value at the top of the axis.
  highest() {
    return this.total ?? state.gpus.get(this.uuid)?.allocatable ?? 1;
  }

  showOwners() {
    const list = owners(this.uuid);
    const create = () => el("li", {}, el("span", { class: "swatch" }), el("span"));
    const none = state.at == null ? "ended" : "not at that moment";
    keyed(this.owners, list, (owner) => owner.name, create, (node, owner) => {
      node.firstChild.style.backgroundColor = owner.colour;
      node.classList.toggle("soft", owner.used == null);
      setText(node.lastChild, `${owner.name} ${owner.used == null ? none : bytes(owner.used)}`);
    });
  }

  showPeaks() {
    if (!this.peakBox.open || !this.plot.series()) return;
    keyed(this.peaks, this.plot.recordedPeaks().reverse(), (peak) => `${peak.minute} ${peak.at}`, (peak) => {
      const row = cells(3);
      row.firstChild.append(momentLink(peak.at, this.uuid, clock(peak.at, 2)));
      return row;
    }, (row, peak) => [bytes(peak.used_bytes), peak.held_by].forEach((text, index) => setText(row.children[index + 1], text)));
  }
}
