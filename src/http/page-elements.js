// Creates and updates elements of the page.
//
// Invariant: a text is only ever set as text or as an attribute, never as markup.
import { clean } from "./page-charts.js";

/// Creates an element. An attribute that is a function is an event handler; a child is a node or a string.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value != null && value !== false) node.setAttribute(name, clean(value));
  }
  node.append(...children.map((child) => (child instanceof Node ? child : clean(child))));
  return node;
}

/// Sets the text of a node if it differs, so that a selection within unchanged text is kept.
export function setText(node, text) {
  const cleaned = clean(text);
  if (node.textContent !== cleaned) node.textContent = cleaned;
}

/// Makes the children of a node match the items. A child whose key is still among the items is kept, with its focus and
/// its state.
export function keyed(parent, items, key, create, update) {
  const before = parent.shown ?? new Map();
  const after = new Map();
  for (const item of items) {
    let id = key(item);
    while (after.has(id)) id += "'";
    after.set(id, [before.get(id) ?? create(item), item]);
  }
  for (const [id, node] of before) if (!after.has(id)) node.remove();
  let index = 0;
  parent.shown = new Map();
  for (const [id, [node, item]] of after) {
    update(node, item);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    parent.shown.set(id, node);
    index += 1;
  }
}

/// Shows figures, each with its name, in a list of descriptions.
export function showFigures(list, figures) {
  const create = ([name]) => el("div", {}, el("dt", {}, name), el("dd"));
  keyed(list, figures, ([name]) => name, create, (node, [, value]) => setText(node.lastChild, value));
}

export function headings(names) {
  return el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name))));
}

export function cells(count) {
  return el("tr", {}, ...Array.from({ length: count }, () => el("td")));
}

export function fill(row, texts) {
  texts.forEach((text, index) => setText(row.children[index], text));
}

/// A row with these texts in its cells.
export function filled(texts) {
  const row = cells(texts.length);
  fill(row, texts);
  return row;
}

export function spaced(pieces) {
  return pieces.filter((piece) => piece !== "").flatMap((piece, index) => (index > 0 ? [" ", piece] : [piece]));
}
