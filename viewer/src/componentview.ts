// What passes through each layer's components, and what its biases add, as bars; by head as a grid.

import { brief, readableOn, signed, signedColours, tick, type Ink } from "./colours";
import { svg } from "./dom";
import type { Bias, Explained } from "./explanation";
import { drawBar } from "./figure";
import { layerName } from "./sequences";

export interface ComponentPicture {
  explained: Explained;
  names: string[];
  biases: Bias[];
  token: number | null; // whose position is shown alone
  heads: number | null; // heads of a layer where they are shown
}

export interface Bars {
  name: string;
  values: number[]; // by layer; the head's comes last where there is one
  alone: number[] | null; // of the chosen token's position
}

/** Sums over positions, by component, and the biases by layer. */
export function barsOf({ explained, names, biases, token }: ComponentPicture): Bars[] {
  const n = explained.labels.length;
  const layers = Array.from({ length: explained.layers }, (_, layer) => layer);
  const at = (layer: number, component: number, k: number) =>
    explained.components[(layer * names.length + component) * n + k] || 0; // NaN: no such component
  const panels: Bars[] = names.map((name, component) => ({
    name,
    values: layers.map((layer) => {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += at(layer, component, k);
      return sum;
    }),
    alone: token === null ? null : layers.map((layer) => at(layer, component, token)),
  }));
  const unowned = [...layers.map(() => 0), 0];
  for (const [layer, , value] of biases) unowned[layer === "head" ? explained.layers : layer] += value;
  return [...panels, { name: "biases", values: unowned, alone: null }];
}

/** [layer, head]: an attention's share, of all positions or of one; NaN where a layer has no such head. */
export function headsOf({ explained, token }: ComponentPicture, shares: Float32Array = explained.heads): Float32Array {
  const n = explained.labels.length;
  return Float32Array.from({ length: shares.length / n }, (_, k) => {
    if (token !== null) return shares[k * n + token];
    let sum = 0;
    for (let j = 0; j < n; j++) sum += shares[k * n + j];
    return sum;
  });
}

const LEFT = 84;
const PANEL = 104;
const GAP = 18;

export function drawComponents(into: SVGElement, picture: ComponentPicture, room: number, ink: Ink): { width: number; height: number } {
  const { explained } = picture;
  const panels = barsOf(picture);
  const width = Math.max(LEFT + 13 * (explained.layers + 1), Math.min(room, LEFT + 64 * (explained.layers + 1)));
  const step = (width - LEFT - 4) / (explained.layers + 1);
  const [low, high] = range(panels);
  const scale = PANEL / (high - low || 1);
  panels.forEach((bars, k) => drawPanel(into, bars, { top: 8 + k * (PANEL + GAP), step, scale, low, high }, explained.layers, ink));
  let height = 8 + panels.length * (PANEL + GAP);
  const every = Math.max(1, Math.ceil((explained.sequences === null ? 18 : 36) / step));
  const names = svg("g", { "font-size": 11, fill: ink.muted, "text-anchor": "middle" });
  for (let layer = 0; layer <= explained.layers; layer++) {
    const last = layer === explained.layers;
    if (!last && layer % every !== 0) continue;
    names.append(svg("text", { x: LEFT + (layer + 0.5) * step, y: height }, last ? "end" : layerName(explained, layer)));
  }
  names.append(svg("text", { x: LEFT - 8, y: height, "text-anchor": "end" }, "layer"));
  into.append(names);
  height += 14;
  if (picture.heads !== null) {
    height = drawHeads(into, picture, "ATTN", explained.heads, height + 18, step, ink);
    if (explained.cross !== null) height = drawHeads(into, picture, "CROSS", explained.cross, height + 18, step, ink);
  }
  return { width, height };
}

/** From the lowest to the highest bar, 0 included. */
function range(panels: Bars[]): [number, number] {
  const all = panels.flatMap(({ values, alone }) => [...values, ...(alone ?? [])]);
  return [Math.min(0, ...all), Math.max(0, ...all)];
}

function drawPanel(
  into: SVGElement,
  { name, values, alone }: Bars,
  { top, step, scale, low, high }: { top: number; step: number; scale: number; low: number; high: number },
  layers: number,
  ink: Ink,
): void {
  const zero = top + high * scale;
  const panel = svg("g", { class: "panel", "data-panel": name });
  panel.append(
    svg("text", { x: 0, y: top + 12, "font-size": 13, "font-weight": 650, fill: ink.text }, name),
    svg("line", { x1: LEFT, x2: LEFT + step * (layers + 1), y1: zero, y2: zero, stroke: ink.muted, "stroke-width": 0.8 }),
  );
  for (const value of [low, high]) {
    if (value === 0) continue;
    panel.append(svg("text", { x: LEFT - 6, y: zero - value * scale + 4, "text-anchor": "end", "font-size": 10, fill: ink.muted }, tick(Number(value.toPrecision(2)))));
  }
  panel.append(svg("text", { x: LEFT - 6, y: zero + 4, "text-anchor": "end", "font-size": 10, fill: ink.muted }, "0"));
  const bar = (value: number, layer: number, faint: boolean, narrow: boolean) => {
    const width = Math.max(2, step * (narrow ? 0.4 : 0.72));
    return svg("rect", {
      x: LEFT + (layer + 0.5) * step - width / 2,
      y: Math.min(zero, zero - value * scale),
      width,
      height: Math.max(0.5, Math.abs(value) * scale),
      fill: value < 0 ? ink.minus : ink.plus,
      "fill-opacity": faint ? 0.25 : 0.9,
      "data-layer": layer === layers ? "head" : layer,
      "data-value": value,
    });
  };
  values.forEach((value, layer) => panel.append(bar(value, layer, alone !== null, false)));
  alone?.forEach((value, layer) => panel.append(bar(value, layer, false, true)));
  into.append(panel);
}

/** Heads below each other, layers as above; returns the lower end. */
function drawHeads(
  into: SVGElement,
  picture: ComponentPicture,
  attention: string,
  shares: Float32Array,
  top: number,
  step: number,
  ink: Ink,
): number {
  const { layers } = picture.explained;
  const values = headsOf(picture, shares);
  const heads = values.length / layers;
  const colours = signedColours(values, [], "what passes through the head", ink.dark);
  const row = Math.max(12, Math.min(22, 420 / heads));
  const grid = svg("g", { class: "heads", "data-panel": attention === "ATTN" ? "heads" : `${attention} heads` });
  grid.append(svg("text", { x: 0, y: top + 12, "font-size": 13, "font-weight": 650, fill: ink.text }, `${attention} by head`));
  const from = top + 22;
  for (let head = 0; head < heads; head++) {
    const y = from + head * row;
    grid.append(svg("text", { x: LEFT - 6, y: y + row * 0.5 + 4, "text-anchor": "end", "font-size": 10, fill: ink.muted }, `head ${head}`));
    for (let layer = 0; layer < layers; layer++) {
      const k = layer * heads + head;
      if (Number.isNaN(values[k])) continue;
      const fill = colours.colour(colours.at(k));
      grid.append(
        svg("rect", {
          x: LEFT + layer * step, y, width: Math.max(1, step - 1), height: row - 1, fill,
          "data-layer": layer, "data-head": head, "data-value": values[k],
        }),
      );
      if (step > 40 && row > 15) {
        grid.append(svg("text", { x: LEFT + (layer + 0.5) * step, y: y + row * 0.5 + 3.5, "text-anchor": "middle", "font-size": 10, fill: readableOn(fill), "pointer-events": "none" }, brief(values[k])));
      }
    }
  }
  into.append(grid);
  drawBar(grid, colours, LEFT, from + heads * row + 10, step * layers, ink);
  return from + heads * row + 54;
}

/** What a bar or a cell says when it is pointed at. */
export function barLines(mark: SVGElement, biases: Bias[], explained: Explained): string[] | null {
  const { layer, value, head } = mark.dataset as Record<string, string | undefined>;
  const name = (mark.parentNode as SVGElement | null)?.dataset.panel;
  if (layer === undefined || value === undefined || name === undefined) return null;
  const where = layer === "head" ? "behind the last layer" : `layer ${layerName(explained, Number(layer))}`;
  const attention = name.startsWith("CROSS") ? "CROSS " : "";
  const lines = [head === undefined ? `${name}, ${where}` : `${attention}head ${head}, ${where}`];
  if (name === "biases") {
    for (const [of, component, share] of biases) if (String(of) === layer && share !== 0) lines.push(`${component} ${signed(share)}`);
  }
  return [...lines, signed(Number(value))];
}
