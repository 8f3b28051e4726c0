// Lines over layers: one for each scope or component, with points that lead to what they stand for.

import { scaleLinear } from "d3-scale";

import { number, tick, type Ink } from "./colours";
import { svg } from "./dom";
import { FONT, textWidth, wrapped } from "./figure";

export interface Line {
  name: string;
  values: number[]; // one for each x; NaN leaves a gap
  current?: boolean;
}

export interface Chart {
  name: string;
  title: string;
  subtitle: string;
  layers: string[];
  layer: number; // the one that is looked at, by its place
  word: string; // what is measured
  lines: Line[];
  range?: [number, number]; // of the axis; usual is from 0 to the largest value
  width: number;
  choose?: (line: number, layer: number) => void;
}

// Okabe and Ito's colours, as in normlens.figures; more lines than that are dashed.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const ON_DARK = ["#4ea3e0", "#f08a5a", "#2bc79a", "#e39cc6", "#f2b632", "#a9dcf8"];
const DASHES = ["", "5 3", "2 2"];
const PLOT = 190; // height of the axes
const [LEFT, RIGHT, TITLE, AXIS, ROW] = [44, 14, 24, 38, 17];

/** How a line looks, by its place among the lines. */
function styleOf(k: number, { dark }: Ink): { stroke: string; "stroke-dasharray": string | null } {
  return {
    stroke: (dark ? ON_DARK : COLOURS)[k % COLOURS.length],
    "stroke-dasharray": DASHES[Math.floor(k / COLOURS.length) % DASHES.length] || null,
  };
}

/** A line chart as SVG: layers from left to right. */
export function linesFigure(chart: Chart, ink: Ink): SVGElement {
  const { layers, lines, width } = chart;
  const subtitle = wrapped(chart.subtitle, 11, width);
  const top = TITLE + 14 * subtitle.length + 6;
  const places = legendPlaces(lines.map(({ name }) => name), width);
  const height = top + PLOT + AXIS + ROW * places.rows + 6;
  const figure = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, role: "img",
    "aria-label": `${chart.title}: ${chart.word} by layer`, "data-chart": chart.name,
  });
  const words = (x: number, y: number, text: string, more: Record<string, unknown>) =>
    figure.append(svg("text", { x, y, fill: ink.text, "font-size": 10.5, ...more }, text));
  words(0, 14, chart.title, { "font-size": 13, "font-weight": 650 });
  subtitle.forEach((line, k) => words(0, TITLE + 8 + 14 * k, line, { "font-size": 11, fill: ink.muted }));
  const known = lines.flatMap(({ values }) => values).filter(Number.isFinite);
  const y = scaleLinear()
    .domain(chart.range ?? [Math.min(0, ...known), Math.max(...known, 1e-12)])
    .nice(4)
    .range([top + PLOT, top]);
  const inside = width - LEFT - RIGHT;
  const x = (k: number) => LEFT + (layers.length === 1 ? 0.5 : k / (layers.length - 1)) * inside;
  for (const value of y.ticks(4)) {
    figure.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), stroke: ink.line, "stroke-width": 0.7 }));
    words(LEFT - 6, y(value) + 4, tick(value), { "text-anchor": "end" });
  }
  const every = Math.ceil((layers.length * 16) / inside);
  layers.forEach((layer, k) => {
    if (k % every === 0) words(x(k), top + PLOT + 15, layer, { "text-anchor": "middle" });
  });
  words(LEFT + inside / 2, top + PLOT + 30, "layer", { "text-anchor": "middle", fill: ink.muted });
  figure.append(
    svg("line", { class: "here", x1: x(chart.layer), x2: x(chart.layer), y1: top, y2: top + PLOT, stroke: ink.accent, "stroke-opacity": 0.6 }),
  );
  lines.forEach((line, k) => {
    const style = styleOf(k, ink);
    const bold = line.current ?? false;
    const path = pathOf(line.values.map((value, layer) => [x(layer), y(value)]));
    figure.append(svg("path", { d: path, fill: "none", ...style, "stroke-width": bold ? 3 : 1.5, "data-line": line.name }));
    line.values.forEach((value, layer) => {
      if (!Number.isFinite(value)) return;
      const point = svg(
        "circle",
        {
          cx: x(layer), cy: y(value), r: bold ? 3.5 : 2.5, fill: style.stroke, class: chart.choose ? "pick" : null,
          "data-point": `${line.name}:${layers[layer]}`, "data-value": value,
          onclick: chart.choose ? () => chart.choose?.(k, layer) : null,
        },
        svg("title", {}, `${line.name}, layer ${layers[layer]}: ${number(value)}`),
      );
      figure.append(point);
    });
  });
  places.at.forEach(([left, row], k) => {
    const base = top + PLOT + AXIS + ROW * row + 10;
    const style = { ...styleOf(k, ink), "stroke-width": lines[k].current ? 3 : 2 };
    figure.append(svg("line", { x1: left, x2: left + 18, y1: base - 4, y2: base - 4, ...style }));
    words(left + 23, base, lines[k].name, { "font-weight": lines[k].current ? 650 : 400 });
  });
  return figure;
}

/** Where the names of lines stand, from left to right and row by row. */
function legendPlaces(names: string[], width: number): { at: [number, number][]; rows: number } {
  const widest = Math.max(...names.map((name) => textWidth(name, 10.5)), 20) + 38;
  const columns = Math.max(1, Math.floor(width / widest));
  const at = names.map((_, k): [number, number] => [(k % columns) * widest, Math.floor(k / columns)]);
  return { at, rows: Math.ceil(names.length / columns) };
}

/** A path through points; a point that is not known leaves a gap. */
function pathOf(points: [number, number][]): string {
  let path = "";
  let drawing = false;
  for (const [x, y] of points) {
    const known = Number.isFinite(y);
    if (known) path += `${drawing ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
    drawing = known;
  }
  return path;
}
