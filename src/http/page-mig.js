// A MIG device in the card of its GPU: what identifies it, its figures and its chart.
//
// Invariant: the title has all that a label of the metrics or an alert can name: UUID, GPU instance and profile. A device that is gone keeps
// its chart as long as the time span shown has values of it.
import { bytes, ofTotal } from "./page-charts.js";
import { el, setText, showFigures } from "./page-elements.js";
import { Plot } from "./page-plot.js";
import { migName, pointThen, state } from "./page-state.js";

export class Mig {
  constructor(card, uuid, id) {
    [this.card, this.uuid] = [card, uuid];
    this.title = el("h3", { id: `${id}-title` });
    this.stats = el("dl", { class: "stats" });
    this.note = el("p", { class: "fact" });
    this.plot = new Plot(card, {
      uuid, id, low: true,
      entry: () => state.migs.get(uuid),
      highest: () => this.total ?? state.migs.get(uuid)?.allocatable ?? 1,
      holds: (process) => process.uuid === card.uuid && isOfInstance(process.who.mig_uuid, uuid),
    });
    this.charted = el("div", {}, ...this.plot.nodes);
    this.node = el("section", { class: "mig", "aria-labelledby": `${id}-title` }, this.title, this.stats, this.note, this.charted);
  }

  /// Shows the values of the device. `device` is undefined if it is not listed, and `lacks` says why; `all` are the GPU's devices.
  show(device, lacks, all) {
    this.total = device?.total_bytes ?? this.total;
    // The devices of a GPU instance share its memory, which is recorded for the first of them.
    const shared = all.filter((other) => other.gpu_instance === device?.gpu_instance);
    const isRecorded = state.migs.has(this.uuid);
    const name = this.name(shared.length > 1);
    setText(this.title, name);
    showFigures(this.stats, state.at == null ? this.figuresNow(device, lacks) : this.figuresThen(lacks));
    const first = shared.find(({ uuid }) => state.migs.has(uuid));
    this.note.hidden = isRecorded || !state.recorder;
    setText(this.note, first
      ? `The chart of ${migName(first.uuid)} has this memory: the devices of GPU instance ${first.gpu_instance} share it.`
      : "Nothing is recorded for this time.");
    this.charted.hidden = !isRecorded || !state.recorder;
    this.plot.show(`GPU ${this.card.index}, ${name}`);
    const isNamed = this.uuid === state.gpu;
    this.node.classList.toggle("named", isNamed);
    if (isNamed) this.node.setAttribute("aria-current", "true");
    else this.node.removeAttribute("aria-current");
  }

  /// All that identifies the device. The compute instance tells devices of one GPU instance from each other.
  name(isShared) {
    const known = state.migDevices.get(this.uuid);
    if (!known) return this.uuid;
    const compute = isShared ? [`compute instance ${known.compute_instance}`] : [];
    const parts = [`GPU instance ${known.gpu_instance}`, ...compute, known.profile ?? "profile unknown", this.uuid];
    return `MIG ${known.index}: ${parts.join(", ")}`;
  }

  figuresNow(device, lacks) {
    const rows = [["used", ofTotal(device?.used_bytes, device?.total_bytes)], ...this.limit()];
    if (lacks) rows.push(["now", lacks]);
    if (device?.peak_bytes != null) rows.push(["peak since start", bytes(device.peak_bytes)]);
    if (device?.unattributed_bytes != null) rows.push(["not attributed", bytes(device.unattributed_bytes)]);
    return rows;
  }

  /// The figures that are recorded for the chosen moment, and whether the device can be read now.
  figuresThen(lacks) {
    const rows = this.plot.figuresThen(this.total);
    if (pointThen(this.plot.series())) rows.push(...this.limit());
    if (lacks) rows.push(["now", lacks]);
    return rows;
  }

  limit() {
    const limit = state.migs.get(this.uuid)?.allocatable;
    return limit == null ? [] : [["limit", bytes(limit)]];
  }

  /// The chart that shows the memory of this device, or the given one if this device has none.
  plotOr(other) {
    return this.charted.hidden ? other : this.plot;
  }
}

/// Whether two MIG devices of a GPU belong to the same GPU instance.
function isOfInstance(uuid, other) {
  const [one, two] = [uuid, other].map((device) => state.migDevices.get(device)?.gpu_instance);
  return uuid === other || (one != null && one === two);
}
