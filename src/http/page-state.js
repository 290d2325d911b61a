// What the page knows and shows, shared by its scripts.
//
// Invariant: nothing here draws, requests or changes an element.

/// The selectable time spans: length in seconds, name, and length of each part of a chart in seconds.
export const SPANS = [[300, "5 min", 0.25], [900, "15 min", 1], [1800, "30 min", 2], [3600, "1 h", 4], [7200, "2 h", 8]];

export const state = {
  span: SPANS[0],
  at: null, // the moment to which the charts are fixed; null: they follow the time
  gpu: null, // the UUID of the GPU that the address names
  incident: null, // the id of the incident that the address names
  generation: 0,
  from: 0,
  to: 0,
  since: Infinity, // when the recorder started
  next: null,
  gpus: new Map(), // uuid → { gpu, series, allocatable, peaks, calls }
  processes: new Map(), // key → { gpu, uuid, who, startedAt, series }
  workloads: new Map(), // key → { uuid, name, series }
  migs: new Map(), // UUID of a MIG device → { uuid of its GPU, gpu, series, allocatable, peaks, calls }
  migDevices: new Map(), // UUID of a MIG device → { index, gpu_instance, compute_instance, profile }, also of one that is gone
  leftOut: 0, // the number of workloads without a series
  leftOutProcesses: 0, // the number of processes without a series
  answer: null,
  listed: { processes: [], more_processes: 0 },
  recorder: true,
  failures: 0,
  lastAnswer: null,
  paused: false,
  asked: false, // whether a time was asked for that has not been loaded yet
  sort: { column: null, descending: true },
  all: false,
};
export const cards = new Map(); // uuid → Card
export const parts = {};

/// A short name of a MIG device on its GPU: its index if that is known, and otherwise its UUID.
export function migName(uuid) {
  const index = state.migDevices.get(uuid)?.index;
  return index == null ? uuid : `MIG ${index}`;
}

/// The name of a GPU, or of a MIG device with the id of its GPU instance, which alerts name too.
export function deviceName(gpu, migUuid) {
  if (migUuid == null) return `GPU ${gpu}`;
  const known = state.migDevices.get(migUuid);
  return `GPU ${gpu} ${migName(migUuid)}${known ? ` (GPU instance ${known.gpu_instance})` : ""}`;
}

/// What a series has for the chosen moment: [begin, lowest, highest, last]; undefined if nothing is recorded for it.
export function pointThen(series) {
  return state.at == null || state.at > state.to ? undefined : series?.at(state.at);
}

/// The bytes that a series has for the chosen moment; undefined if they are not recorded.
export function usedThen(series) {
  return pointThen(series)?.[3] ?? undefined;
}

/// Whether anything of a GPU is recorded for the chosen moment.
export function isRecordedThen() {
  return [...state.gpus.values()].some(({ series }) => pointThen(series));
}
