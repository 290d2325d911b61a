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
  gpus: new Map(), // uuid → { series, allocatable }
  processes: new Map(), // key → { uuid, who, series }
  workloads: new Map(), // key → { uuid, name, series }
  leftOut: 0, // the number of workloads without a series
  events: [],
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
