// A table of numbers as colours, as SVG.

import { readableOn, type Colouring, type Ink } from "./colours";
import { svg } from "./dom";
import { FONT, cut, drawBar } from "./figure";

export interface Grid {
  name: string;
  title: string;
  subtitle: string;
  rows: string[];
  columns: string[];
  values: ArrayLike<number>;
  low: number;
  high: number;
  colour: (t: number) => string;
  what: string;
  cell: [number, number];
  digits: number | null; // written into the cells
  rowWord: string;
  columnWord: string;
}

/** A table of numbers as colours. */
export function gridFigure(grid: Grid, ink: Ink): SVGElement {
  const [wide, high] = grid.cell;
  const left = 20 + Math.max(...grid.rows.map((row) => 7.2 * cut(row, 12).length), 12);
  const crowded = wide < 40 || grid.columns.some((label) => 6.2 * cut(label, 14).length > wide);
  const lean = wide > 17 ? 0.72 : 1;
  const longest = Math.max(...grid.columns.map((label) => cut(label, 14).length));
  const top = 46 + (grid.columnWord ? 16 : 0) + (crowded ? lean * longest * 6.4 + 6 : 14);
  const width = Math.max(left + wide * grid.columns.length + (crowded ? lean * longest * 6 : 8), 330);
  const height = top + high * grid.rows.length + 52;
  const figure = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, role: "img",
    "aria-label": grid.title, "data-grid": grid.name, fill: ink.text,
  });
  const words = (x: number, y: number, text: string, more: Record<string, unknown>) =>
    figure.append(svg("text", { x, y, fill: ink.text, ...more }, text));
  words(0, 14, grid.title, { "font-size": 14, "font-weight": 650 });
  words(0, 31, grid.subtitle, { "font-size": 11.5, fill: ink.muted });
  if (grid.columnWord) {
    words(left + (wide * grid.columns.length) / 2, 50, grid.columnWord, {
      "font-size": 11.5, fill: ink.muted, "text-anchor": "middle",
    });
  }
  if (grid.rowWord) {
    words(0, 0, grid.rowWord, {
      "font-size": 11.5, fill: ink.muted, "text-anchor": "middle",
      transform: `translate(11 ${top + (high * grid.rows.length) / 2}) rotate(-90)`,
    });
  }
  const every = Math.ceil(12 / wide);
  grid.columns.forEach((label, k) => {
    if (k % every !== 0) return;
    const x = left + (k + 0.5) * wide;
    const text = cut(label, 14);
    if (!crowded) words(x, top - 6, text, { "font-size": 10.5, "text-anchor": "middle" });
    else {
      const turn = lean < 1 ? `translate(${x - 2} ${top - 6}) rotate(-45)` : `translate(${x + 3} ${top - 6}) rotate(-90)`;
      words(0, 0, text, { "font-size": 10.5, transform: turn });
    }
  });
  const columns = grid.columns.length;
  const place = (value: number) =>
    Math.max(0, Math.min(1, (value - grid.low) / (grid.high - grid.low || 1)));
  grid.rows.forEach((label, i) => {
    words(left - 6, top + (i + 0.5) * high + 4, cut(label, 12), { "font-size": 10.5, "text-anchor": "end" });
    for (let j = 0; j < columns; j++) {
      const value = grid.values[i * columns + j];
      const known = !Number.isNaN(value);
      const fill = known ? grid.colour(place(value)) : ink.absent;
      const cell = svg(
        "rect",
        { x: left + j * wide, y: top + i * high, width: wide, height: high, fill },
        svg("title", {}, `${grid.columns[j]}, ${grid.rows[i]}: ${known ? value.toFixed(3) : "not defined"}`),
      );
      cell.setAttribute("data-value", String(value));
      if (wide > 12) {
        cell.setAttribute("stroke", ink.paper);
      }
      figure.append(cell);
      if (grid.digits === null) continue;
      words(left + (j + 0.5) * wide, top + (i + 0.5) * high + 4, known ? value.toFixed(grid.digits) : "–", {
        "font-size": 11, "text-anchor": "middle", fill: known ? readableOn(fill) : ink.muted, "pointer-events": "none",
      });
    }
  });
  const bar: Colouring = {
    at: () => 0,
    colour: grid.colour,
    ticks: [0, 0.5, 1].map((t) => ({ t, label: (grid.low + t * (grid.high - grid.low)).toFixed(2) })),
    what: grid.what,
    packed: new Uint32Array(0),
  };
  drawBar(figure, bar, left, height - 44, Math.max(wide * columns, 200), ink);
  return figure;
}
