// The text, series and drawing functions of the page.
//
// Invariant: nothing here depends on the API or on the elements of the page. A value that is not known is drawn as a gap, never as 0.

/// The interval, in seconds, of the slow readings that the charts draw for comparison with the recorded values. The
/// slow readings are derived from the recorded values.
const SLOW_SECONDS = 15;

// Text

/// Replaces control characters and characters that change the direction of the surrounding text, as the server does.
export function clean(text) {
  return String(text).replace(/[\p{Cc}\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069]/gu, "\uFFFD");
}

export function bytes(value) {
  if (value == null) return "unknown";
  const mib = value / 1048576;
  return Math.abs(mib) >= 1024 ? `${(mib / 1024).toFixed(1)} GiB` : `${mib.toFixed(0)} MiB`;
}

/// Used memory, and the total if both are known.
export function ofTotal(used, total) {
  return used == null || total == null ? bytes(used) : `${bytes(used)} of ${bytes(total)}`;
}

export function clock(unix, digits = 0) {
  const date = new Date(unix * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return digits ? `${time}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : time;
}

export function dateAndClock(unix) {
  const date = new Date(unix * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock(unix) : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(unix)}`;
}

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
}

export function plural(count, one, many) {
  return `${count} ${count === 1 ? one : many}`;
}

// Series

/// The values of one GPU or process over time. A point is [begin, lowest, highest, last] and is valid until the
/// next one.
export class Series {
  points = [];

  /// Replaces everything from `from` on with the points of a response. The response omits unknown points at its start.
  merge(points, from, oldest, step) {
    const kept = this.points.filter((point) => point[0] < from - step / 2);
    const first = kept.findLastIndex((point) => point[0] <= oldest);
    if (first > 0) kept.splice(0, first);
    const starts = points.length > 0 && points[0][0] < from + step / 2;
    if (!starts && kept.length > 0 && kept.at(-1)[3] != null) kept.push([from, null, null, null]);
    this.points = kept.concat(points);
  }

  index(time) {
    let [low, high] = [0, this.points.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle][0] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /// The point that is valid at a given time; undefined if nothing is known for that time.
  at(time) {
    const point = this.points[this.index(time)];
    return point?.[3] == null && point?.[1] == null ? undefined : point;
  }

  last() {
    return this.points.at(-1)?.[3] ?? undefined;
  }

  /// Calls `visit(begin, end, point)` for each known part of a time span.
  each(from, to, visit) {
    for (let index = Math.max(this.index(from), 0); index < this.points.length; index += 1) {
      const point = this.points[index];
      const [begin, end] = [Math.max(point[0], from), Math.min(this.points[index + 1]?.[0] ?? to, to)];
      if (point[0] >= to) break;
      if (point[1] != null && end > begin) visit(begin, end, point);
    }
  }

  /// The lowest value, the highest value with its time, and the mean of a time span; undefined if nothing is known.
  figures(from, to) {
    let [least, most, mostAt, area, known] = [Infinity, -Infinity, from, 0, 0];
    this.each(from, to, (begin, end, point) => {
      least = Math.min(least, point[1]);
      if (point[2] > most) [most, mostAt] = [point[2], begin];
      area += (point[3] ?? point[1]) * (end - begin);
      known += end - begin;
    });
    return known > 0 ? { least, most, mostAt, mean: area / known } : undefined;
  }
}

// Colours

export let colours = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "fill", "band", "area", "mark", "bad", "ended", "nobody", "card"];
  names.push("s1", "s2", "s3", "s4", "s5", "s6", "s7");
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Charts

const PAD = { left: 52, right: 10, top: 12, bottom: 18 };

/// Sizes a canvas to its element in device pixels and clears it. Drawing coordinates are in CSS pixels.
export function prepare(canvas) {
  const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height };
}

/// The mapping of times and bytes to pixels.
export function scales({ width, height }, from, to, highest) {
  const x = (time) => PAD.left + ((time - from) / (to - from)) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - (value / highest) * (height - PAD.top - PAD.bottom);
  const time = (pixel) => from + ((pixel - PAD.left) / (width - PAD.left - PAD.right)) * (to - from);
  return { x, y, time, from, to, highest, width, height };
}

/// The shortest of the usual intervals, in seconds, that leaves room for the labels.
function distance(span, room) {
  const usual = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
  return usual.find((seconds) => span / seconds <= room) ?? 3600;
}

export function drawAxes(pen, scale, lines) {
  pen.strokeStyle = colours.line;
  pen.fillStyle = colours.soft;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let index = 0; index <= lines; index += 1) {
    const value = (scale.highest * index) / lines;
    const y = Math.round(scale.y(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(PAD.left, y);
    pen.lineTo(scale.width - PAD.right, y);
    pen.stroke();
    const gib = value / 2 ** 30;
    pen.fillText(`${scale.highest < 2 ** 33 ? gib.toFixed(1) : gib.toFixed(0)} GiB`, PAD.left - 6, y);
  }
  pen.textBaseline = "alphabetic";
  const span = scale.to - scale.from;
  const step = distance(span, (scale.width - PAD.left - PAD.right) / 70);
  pen.textAlign = "center";
  for (let time = Math.ceil(scale.from / step) * step; time <= scale.to; time += step) {
    const [x, label] = [scale.x(time), step < 60 ? clock(time) : clock(time).slice(0, 5)];
    if (x > PAD.left + 20 && x < scale.width - PAD.right - 18) pen.fillText(label, x, scale.height - 4);
  }
}

/// Draws the area below the highest value and, on top of it, the band between the lowest and the highest value.
function drawBand(pen, scale, series) {
  const [area, band, line] = [new Path2D(), new Path2D(), new Path2D()];
  let before = null;
  series.each(scale.from, scale.to, (begin, end, point) => {
    const [left, right, high, low] = [scale.x(begin), scale.x(end), scale.y(point[2]), scale.y(point[1])];
    // Parts overlap a little, so that no gap shows between them. Within one path, the overlap is not drawn darker.
    area.rect(left, high, right - left + 0.5, scale.y(0) - high);
    band.rect(left, high, right - left + 0.5, Math.max(low - high, 1));
    if (before == null || left - before > 1) line.moveTo(left, high);
    line.lineTo(left, high);
    line.lineTo(right, high);
    before = right;
  });
  pen.fillStyle = colours.area;
  pen.fill(area);
  pen.fillStyle = colours.band;
  pen.fill(band);
  pen.strokeStyle = colours.fill;
  pen.lineWidth = 1.25;
  pen.stroke(line);
}

/// The values that readings every 15 seconds would have returned, as [time, bytes or undefined].
export function slowReadings(series, from, to) {
  const readings = [];
  for (let time = Math.ceil(from / SLOW_SECONDS) * SLOW_SECONDS; time <= to; time += SLOW_SECONDS) {
    readings.push([time, series.at(time)?.[3] ?? undefined]);
  }
  return readings;
}

function drawSlowReadings(pen, scale, series) {
  pen.strokeStyle = colours.mark;
  pen.fillStyle = colours.mark;
  pen.lineWidth = 1.75;
  pen.beginPath();
  let joined = false;
  const readings = slowReadings(series, scale.from, scale.to);
  for (const [time, value] of readings) {
    if (value != null) pen[joined ? "lineTo" : "moveTo"](scale.x(time), scale.y(value));
    joined = value != null;
  }
  pen.stroke();
  if (scale.to - scale.from > 1000) return;
  for (const [time, value] of readings) if (value != null) pen.fillRect(scale.x(time) - 1.75, scale.y(value) - 1.75, 3.5, 3.5);
}

function drawLimit(pen, scale, limit) {
  if (!limit) return;
  pen.strokeStyle = colours.bad;
  pen.setLineDash([6, 4]);
  pen.lineWidth = 1.25;
  pen.beginPath();
  pen.moveTo(PAD.left, scale.y(limit));
  pen.lineTo(scale.width - PAD.right, scale.y(limit));
  pen.stroke();
  pen.setLineDash([]);
}

/// Of the recorded peaks of minutes, the highest of each minute, or of each fifteenth of a span longer than 15 minutes. `since`
/// is when the first minute began. A part in which the value does not change has no peak.
export function peaks(series, recorded, since, from, to) {
  const minutes = Math.max(1, Math.ceil((to - from) / 60 / 15));
  const parts = new Map();
  for (const peak of recorded.filter((one) => one.at >= from && one.at <= to)) {
    const part = Math.floor(peak.minute / minutes);
    if (!(parts.get(part)?.used_bytes >= peak.used_bytes)) parts.set(part, peak);
  }
  const changes = ([part]) => {
    const begin = since + part * minutes * 60;
    const figures = series.figures(Math.max(begin, from), Math.min(begin + minutes * 60, to));
    return figures && figures.most > figures.least;
  };
  return [...parts].filter(changes).map(([, peak]) => peak);
}

function drawPeaks(pen, scale, found) {
  const highest = found.reduce((most, peak) => Math.max(most, peak.used_bytes), 0);
  let labelled = false;
  for (const { at, used_bytes: used } of found) {
    const [x, y] = [scale.x(at), scale.y(used)];
    pen.beginPath();
    pen.arc(x, y, 3.5, 0, 2 * Math.PI);
    pen.fillStyle = colours.ink;
    pen.fill();
    pen.strokeStyle = colours.card;
    pen.lineWidth = 1.25;
    pen.stroke();
    if (used === highest && !labelled) {
      labelled = true;
      const [text, right] = [`${bytes(used)} at ${clock(at)}`, x > scale.width / 2];
      pen.textAlign = right ? "right" : "left";
      pen.strokeStyle = colours.card;
      pen.lineWidth = 3;
      pen.strokeText(text, x + (right ? -8 : 8), Math.max(y + 3, 10));
      pen.fillText(text, x + (right ? -8 : 8), Math.max(y + 3, 10));
    }
  }
}

/// Draws peaks that calls tell and no reading shows, which are lower bounds: rings, not dots.
function drawCalls(pen, scale, calls) {
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.25;
  for (const [at, least] of calls.filter(([at]) => at >= scale.from && at <= scale.to)) {
    pen.beginPath();
    pen.arc(scale.x(at), scale.y(least), 3, 0, 2 * Math.PI);
    pen.stroke();
  }
}

export function drawCursor(pen, scale, view) {
  if (view.selection) {
    const [left, right] = view.selection.map(scale.x);
    pen.globalAlpha = 0.18;
    pen.fillStyle = colours.ink;
    pen.fillRect(Math.min(left, right), PAD.top, Math.abs(right - left), scale.height - PAD.top - PAD.bottom);
    pen.globalAlpha = 1;
  }
  if (view.cursor == null || view.cursor < scale.from || view.cursor > scale.to) return;
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(scale.x(view.cursor), PAD.top);
  pen.lineTo(scale.x(view.cursor), scale.height - PAD.bottom);
  pen.stroke();
}

/// Draws the chart of a GPU or MIG device and returns its scale. `peaks` are recorded ones, `calls` those that only
/// calls tell, `lines` is the number of the axis's lines.
export function drawMemory(canvas, { series, limit, highest, peaks: recorded, calls, from, to, lines, view }) {
  const area = prepare(canvas);
  const scale = scales(area, from, to, highest);
  drawAxes(area.pen, scale, lines);
  drawBand(area.pen, scale, series);
  drawLimit(area.pen, scale, limit);
  drawSlowReadings(area.pen, scale, series);
  drawPeaks(area.pen, scale, recorded);
  drawCalls(area.pen, scale, calls ?? []);
  drawCursor(area.pen, scale, view);
  return scale;
}

/// Draws memory by owner, stacked: one column for every two pixels. If owners are left out, the remaining memory may be
/// theirs.
export function drawStack(pen, scale, owners, whole, incomplete) {
  const [begin, end] = [PAD.left, scale.width - PAD.right];
  for (let pixel = begin; pixel < end; pixel += 2) {
    const time = scale.time(pixel + 1);
    const total = whole?.at(time)?.[3];
    if (total == null) continue;
    let sum = 0;
    for (const owner of owners) {
      const held = owner.series.reduce((all, series) => all + (series.at(time)?.[3] ?? 0), 0);
      if (held === 0) continue;
      pen.fillStyle = owner.colour;
      pen.fillRect(pixel, scale.y(sum + held), 2, scale.y(sum) - scale.y(sum + held));
      sum += held;
    }
    pen.fillStyle = incomplete ? colours.line : colours.nobody;
    // The driver uses a few MiB for each process, so a small remainder is not drawn.
    if (total - sum > scale.highest / 200) pen.fillRect(pixel, scale.y(total), 2, scale.y(sum) - scale.y(total));
  }
}
