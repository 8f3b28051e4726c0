// The flow picture: layers from left to right, tokens below each other, edges as wide as what they carry.

import { number, signed, type Ink } from "./colours";
import { svg } from "./dom";
import type { Bias, Explained } from "./explanation";
import type { Drawn, Edge } from "./flow";
import { cut, textWidth } from "./figure";
import { layerName } from "./sequences";

export interface FlowPicture {
  explained: Explained;
  drawn: Drawn;
  marks: boolean[] | null; // edges on the chosen token's way; null where none is chosen
  token: number | null;
  biases: Bias[];
  reads: string; // what is read at the end
}

interface Layout {
  rows: number[]; // tokens that have a row
  at: Map<number, number>; // token → row
  left: number;
  step: number; // from layer to layer
  row: number;
  top: number;
  width: number;
  height: number;
  wide: number; // of the widest edge
}

const TOP = 34;
const FEW = 64; // tokens up to which every one has a row
const LONGEST = 16; // characters of a label

/** Tokens that the picture has a row for: all of them, or those that take part. */
export function shownTokens({ explained, drawn, token }: FlowPicture): number[] {
  const all = explained.labels.map((_, k) => k);
  if (all.length <= FEW) return all;
  const taking = new Set(drawn.edges.flatMap(({ source, target }) => [source, target]));
  return all.filter((k) => taking.has(k) || k === token || k === explained.position);
}

function layoutOf(picture: FlowPicture, room: number): Layout {
  const { explained, reads } = picture;
  const rows = shownTokens(picture);
  const row = Math.max(14, Math.min(28, 560 / rows.length));
  const font = fontOf(row);
  const widest = Math.max(...rows.map((k) => textWidth(cut(explained.labels[k], LONGEST), font)), textWidth("no token", font));
  const left = Math.ceil(widest) + 16;
  const right = Math.min(150, Math.ceil(textWidth(cut(reads, 18), 12)) + 34);
  const step = Math.max(7, Math.min(110, (room - left - right) / explained.layers));
  return {
    rows,
    at: new Map(rows.map((token, k) => [token, k])),
    left,
    step,
    row,
    top: TOP,
    width: left + step * explained.layers + right,
    height: TOP + row * (rows.length + 1.6) + 10,
    wide: Math.min(16, row * 0.9),
  };
}

function fontOf(row: number): number {
  return Math.max(10, Math.min(13, row * 0.72));
}

/** Draws the picture; returns its size. */
export function drawFlow(into: SVGElement, picture: FlowPicture, room: number, ink: Ink): { width: number; height: number } {
  const layout = layoutOf(picture, room);
  const { explained } = picture;
  const x = (layer: number) => layout.left + layer * layout.step;
  const y = (token: number) => layout.top + ((layout.at.get(token) as number) + 0.5) * layout.row;
  drawFrame(into, picture, layout, ink);
  const edges = svg("g", { class: "edges", fill: "none", "stroke-linecap": "butt" });
  const top = Math.abs(picture.drawn.edges[0]?.value ?? 1);
  const order = picture.drawn.edges.map((_, k) => k).reverse();
  // Edges of the chosen token's way lie above the others.
  order.sort((a, b) => Number(picture.marks?.[a] ?? false) - Number(picture.marks?.[b] ?? false));
  for (const k of order) {
    const edge = picture.drawn.edges[k];
    const faded = picture.marks !== null && !picture.marks[k];
    edges.append(drawEdge(edge, k, x, y, (layout.wide * Math.abs(edge.value)) / top, faded, ink));
  }
  into.append(edges);
  drawNodes(into, picture, layout, x, y, ink);
  drawBiases(into, picture, layout, x, ink);
  const { position } = explained;
  if (position !== null) {
    const end = x(explained.layers) + layout.wide / 2 + 6;
    into.append(
      svg("text", { x: end, y: y(position) + 4, "font-size": 12, "font-weight": 650, fill: ink.text, class: "reads" }, `→ ${cut(picture.reads, 18)}`),
    );
  }
  return { width: layout.width, height: layout.height };
}

function drawEdge(
  edge: Edge,
  k: number,
  x: (layer: number) => number,
  y: (token: number) => number,
  width: number,
  faded: boolean,
  ink: Ink,
): SVGElement {
  const [x0, x1, y0, y1] = [x(edge.layer), x(edge.layer + 1), y(edge.source), y(edge.target)];
  const bend = (x1 - x0) * 0.5;
  return svg("path", {
    d: `M${round(x0)},${round(y0)}C${round(x0 + bend)},${round(y0)} ${round(x1 - bend)},${round(y1)} ${round(x1)},${round(y1)}`,
    stroke: edge.value > 0 ? ink.plus : ink.minus,
    "stroke-width": round(Math.max(0.7, width)),
    // Thin edges are many, so they are pale, too.
    "stroke-opacity": faded ? 0.08 : round(0.3 + 0.45 * Math.min(1, width / 3)),
    "data-edge": k,
    "data-sign": edge.value > 0 ? "plus" : "minus",
    "data-faded": faded ? "true" : null,
  });
}

function drawFrame(into: SVGElement, { explained, token }: FlowPicture, layout: Layout, ink: Ink): void {
  const { left, step, row, top, rows } = layout;
  const every = Math.max(1, Math.ceil((explained.sequences === null ? 18 : 36) / step));
  const bottom = top + rows.length * row;
  const heads = svg("g", { class: "layers", "font-size": 11, fill: ink.muted, "text-anchor": "middle" });
  into.append(svg("text", { x: left, y: 12, "font-size": 11, fill: ink.muted }, "layer →"));
  for (let layer = 0; layer <= explained.layers; layer++) {
    const x = left + layer * step;
    heads.append(svg("line", { x1: x, x2: x, y1: top, y2: bottom, stroke: ink.line, "stroke-width": 0.5 }));
    if (layer < explained.layers && layer % every === 0) {
      heads.append(svg("text", { x: x + step / 2, y: 27 }, layerName(explained, layer)));
    }
  }
  if (explained.sequences !== null) {
    const { source_tokens, encoder_layers } = explained.sequences;
    const y = top + rows.filter((place) => place < source_tokens).length * row;
    const x = left + encoder_layers * step;
    const line = { stroke: ink.muted, "stroke-width": 1, class: "between" };
    heads.append(
      svg("line", { ...line, x1: left, x2: left + explained.layers * step, y1: y, y2: y, "data-between": "sequences" }),
      svg("line", { ...line, x1: x, x2: x, y1: top, y2: bottom, "stroke-dasharray": "4 3", "data-between": "stacks" }),
    );
  }
  into.append(heads);
  const labels = svg("g", { class: "row-labels", "font-size": fontOf(row), "text-anchor": "end" });
  for (const [k, place] of rows.entries()) {
    const chosen = place === token;
    labels.append(
      svg(
        "text",
        {
          x: left - 10,
          y: top + (k + 0.5) * row + fontOf(row) * 0.35,
          fill: chosen ? ink.accent : explained.special[place] ? ink.muted : ink.text,
          "font-weight": chosen ? 700 : 400,
          "data-token": place,
          class: "pick",
        },
        cut(explained.labels[place], LONGEST),
      ),
    );
  }
  into.append(labels);
}

/** What each vector carries, where an edge that is drawn begins. */
function drawNodes(
  into: SVGElement,
  { explained, drawn, marks }: FlowPicture,
  layout: Layout,
  x: (layer: number) => number,
  y: (token: number) => number,
  ink: Ink,
): void {
  const n = explained.labels.length;
  const nodes = svg("g", { class: "nodes", stroke: ink.paper, "stroke-width": 0.8 });
  const touched = new Set(drawn.edges.map(({ layer, source }) => layer * n + source));
  for (const token of layout.rows) touched.add(token);
  const strong = marks === null ? null : new Set(drawn.edges.flatMap(({ layer, source }, k) => (marks[k] ? [layer * n + source] : [])));
  const radius = scaleOf(explained, layout);
  for (const place of touched) {
    const [layer, token] = [Math.floor(place / n), place % n];
    const value = explained.nodes[place];
    if (!Number.isFinite(value) || !layout.at.has(token)) continue;
    nodes.append(
      svg("circle", {
        cx: round(x(layer)), cy: round(y(token)), r: round(radius(value)),
        fill: value < 0 ? ink.minus : ink.plus, "data-node": place, class: "pick", "data-token": token,
        "fill-opacity": strong === null || strong.has(place) ? null : 0.25,
      }),
    );
  }
  into.append(nodes);
}

function scaleOf(explained: Explained, layout: Layout): (value: number) => number {
  const top = explained.nodes.reduce((most, value) => Math.max(most, Math.abs(value) || 0), 1e-30);
  const most = Math.min(7, layout.row * 0.42);
  return (value) => Math.max(1, most * Math.sqrt(Math.min(1, Math.abs(value) / top)));
}

/** What no token owns, where it comes in: one mark for each layer, on the scale of the nodes. */
function drawBiases(into: SVGElement, picture: FlowPicture, layout: Layout, x: (layer: number) => number, ink: Ink): void {
  const { explained, biases } = picture;
  const y = layout.top + (layout.rows.length + 1) * layout.row;
  const font = fontOf(layout.row);
  const end = x(explained.layers);
  const total = biases.reduce((sum, [, , value]) => sum + value, 0);
  const group = svg("g", { class: "remainder" });
  group.append(
    svg("line", { x1: layout.left, x2: end, y1: y, y2: y, stroke: ink.muted, "stroke-width": 1, "stroke-dasharray": "2 3" }),
    svg("text", { x: layout.left - 10, y: y + font * 0.35, "text-anchor": "end", "font-size": font, "font-style": "italic", fill: ink.muted }, "no token"),
    svg("text", { x: end + layout.wide / 2 + 6, y: y + 4, "font-size": 12, fill: ink.muted, class: "total" }, signed(total)),
  );
  const radius = scaleOf(explained, layout);
  const sums = new Map<number, number>();
  for (const [layer, , value] of biases) {
    const at = layer === "head" ? explained.layers : layer + 0.5;
    sums.set(at, (sums.get(at) ?? 0) + value);
  }
  for (const [at, value] of sums) {
    if (value === 0) continue;
    group.append(
      svg("circle", {
        cx: x(at), cy: y, r: radius(value), fill: value < 0 ? ink.minus : ink.plus, "data-bias": at,
      }),
    );
  }
  into.append(group);
}

/** What the picture shows and what it leaves out, in one sentence each. */
export function shareSentences(picture: FlowPicture): string[] {
  const { drawn, explained } = picture;
  const percent = (share: number) => `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`;
  const sentences = [
    `${drawn.edges.length.toLocaleString("en")} of ${drawn.count.toLocaleString("en")} edges are drawn; they carry ` +
      `${percent(drawn.share)} of all that flows, and ${percent(1 - drawn.share)} is left out. ` +
      `The widest carries ${number(Math.abs(drawn.edges[0]?.value ?? 0))}.`,
  ];
  const hidden = explained.labels.length - shownTokens(picture).length;
  if (hidden > 0) sentences.push(`${hidden} of ${explained.labels.length} tokens have no edge that is drawn, and no row.`);
  return sentences;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
