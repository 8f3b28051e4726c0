// A heat map's frame: where its cells lie, its labels, its axes, and the line between two sequences.

import type { Colouring, Ink } from "./colours";
import { svg } from "./dom";
import { barRoom, cut, drawBar, fittingSize, textWidth, widestLabel } from "./figure";
import { groupAt, named, OWN, type Group } from "./groups";
import type { Mask } from "./measures";

export const SOURCE = "source j (input)";
export const TARGET = "target i (output)";

export interface Window_ {
  rows: [number, number]; // from, to (not included)
  columns: [number, number];
}

export interface Pin {
  axis: "row" | "column";
  index: number;
}

export interface Cell {
  target: number;
  source: number;
}

export interface Heat {
  name: string; // of the panel, such as "map" or "difference"
  title: string;
  subtitle: string;
  map: Float32Array; // [row, column]
  mask: Mask;
  same: Uint8Array; // whether row and column are the same token
  rows: string[];
  columns: string[];
  special: { rows: boolean[]; columns: boolean[] };
  groups: Group[]; // columns by their sequence; empty where there is one alone
  colouring: Colouring;
  recolour: (dark: boolean) => Colouring;
  brief: (value: number) => string; // as it is written into cells
  window: Window_;
  pin: Pin | null;
  pair: Cell | null;
  caption: string;
}

export interface HeatActions {
  hover(cell: Cell | null, event: PointerEvent | null): void;
  pin(pin: Pin): void;
  pair(cell: Cell): void;
  zoom(window: Window_ | null): void;
}

export interface Layout {
  width: number;
  height: number;
  left: number;
  top: number;
  side: { width: number; height: number };
  cell: { width: number; height: number };
  font: number;
  slanted: boolean;
  every: { row: number; column: number }; // one label for so many
  labels: number; // where the column labels may begin, from above
}

const TITLE = 38; // room above the axis words
const AXIS = 18;
const GROUP = 17; // room for the names of the sequences
const BAR = 84; // room below the cells, at first

/** The width of the bar's words below cells of a width. */
function barWidth(side: number): number {
  return Math.max(side, 240);
}

/** All rows and columns of a map. */
export function whole(rows: number, columns: number): Window_ {
  return { rows: [0, rows], columns: [0, columns] };
}

/** Where a pair stands in a map. */
export function placeOf({ columns }: Pick<Heat, "columns">, { target, source }: Cell): number {
  return target * columns.length + source;
}

/** A source with its sequence, where there are two: “encoder: Haus”. */
export function sourceName({ columns, groups }: Heat, source: number): string {
  return named(columns[source], groupAt(groups, source)?.name);
}

export function targetName({ rows, groups }: Heat, target: number): string {
  return named(rows[target], groups.length > 0 ? OWN : undefined);
}

export function layoutOf(heat: Heat, room: { width: number; height: number }): Layout {
  const rows = heat.window.rows[1] - heat.window.rows[0];
  const columns = heat.window.columns[1] - heat.window.columns[0];
  const labels = TITLE + AXIS + (heat.groups.length > 0 ? GROUP : 0);
  let font = 11;
  let layout: Layout | null = null;
  for (let round = 0; round < 3; round++) {
    const widest = (labels: string[], [from, to]: [number, number]) =>
      Math.max(12, (font / 10) * widestLabel(labels, from, to));
    const left = AXIS + 8 + Math.ceil(widest(heat.rows, heat.window.rows));
    const slanted: boolean = layout !== null && layout.cell.width > 2.1 * font;
    const widestColumn = widest(heat.columns, heat.window.columns);
    const above = Math.ceil(slanted ? widestColumn * 0.72 + font : widestColumn);
    const top = labels + 6 + above;
    // A slanted label of the last column leans out to the right.
    const right: number = slanted ? Math.max(10, Math.ceil(above - layout!.cell.width / 2)) : 10;
    const most = { width: Math.max(120, room.width - left - right), height: Math.max(120, room.height - top - BAR) };
    const cell = cellOf({ width: most.width / columns, height: most.height / rows }, columns / rows);
    layout = {
      width: left + Math.max(cell.width * columns, 240) + right,
      height: top + cell.height * rows + 18 + barRoom(heat.colouring, barWidth(cell.width * columns)),
      left,
      top,
      side: { width: cell.width * columns, height: cell.height * rows },
      cell,
      font,
      slanted,
      every: { row: 1, column: 1 },
      labels,
    };
    font = Math.max(9, Math.min(14, Math.floor(Math.min(cell.width, cell.height) * 0.6)));
    layout.font = font;
    const every = (size: number) => Math.max(1, Math.ceil((font + 1) / size));
    layout.every = { row: every(cell.height), column: every(cell.width) };
  }
  return layout as Layout;
}

const LONG = 2.5; // times as many columns as rows, or rows as columns
const READABLE = 22; // pixels

/** Cells are squares that fit; of a map that is much longer one way, the other way stays readable. */
function cellOf(room: { width: number; height: number }, ratio: number): { width: number; height: number } {
  const size = Math.min(room.width, room.height);
  const stretched = (most: number) => Math.max(size, Math.min(READABLE, most));
  return {
    width: ratio < 1 / LONG ? stretched(room.width) : size,
    height: ratio > LONG ? stretched(room.height) : size,
  };
}

/** Everything but the cells. */
export function drawFrame(into: SVGElement, heat: Heat, layout: Layout, ink: Ink): void {
  const { left, top, side, cell, font, every } = layout;
  const words = (x: number, y: number, text: string, more: Record<string, unknown> = {}) =>
    into.append(svg("text", { x, y, fill: ink.text, "font-size": font, ...more }, text));
  words(0, 14, heat.title, { "font-size": fittingSize(heat.title, 14, 0.93 * layout.width), "font-weight": 650 });
  words(0, 31, heat.subtitle, { "font-size": fittingSize(heat.subtitle, 11.5, layout.width), fill: ink.muted });
  words(left + side.width / 2, TITLE + 12, SOURCE, {
    "text-anchor": "middle",
    "font-size": 11.5,
    fill: ink.muted,
  });
  words(0, 0, heat.groups.length > 0 ? `${OWN}: ${TARGET}` : TARGET, {
    "text-anchor": "middle",
    "font-size": 11.5,
    fill: ink.muted,
    transform: `translate(11 ${top + side.height / 2}) rotate(-90)`,
  });
  const shade = (axis: Pin["axis"], k: number) => {
    const pinned = heat.pin !== null && heat.pin.axis === axis && heat.pin.index === k;
    if (pinned) return { fill: ink.accent, "font-weight": 700 };
    return heat.special[`${axis}s`][k] ? { fill: ink.muted } : {};
  };
  const shown = (k: number, from: number, axis: Pin["axis"]) =>
    (k - from) % every[axis] === 0 || (heat.pin?.axis === axis && heat.pin.index === k);
  const [row, lastRow] = heat.window.rows;
  const rows = svg("g", { class: "row-labels" });
  for (let k = row; k < lastRow; k++) {
    if (!shown(k, row, "row")) continue;
    const y = top + (k - row + 0.5) * cell.height + font * 0.35;
    rows.append(
      svg(
        "text",
        { x: left - 6, y, "text-anchor": "end", "font-size": font, fill: ink.text, ...shade("row", k) },
        cut(heat.rows[k]),
      ),
    );
  }
  const [column, lastColumn] = heat.window.columns;
  const columns = svg("g", { class: "column-labels" });
  for (let k = column; k < lastColumn; k++) {
    if (!shown(k, column, "column")) continue;
    const x = left + (k - column + 0.5) * cell.width;
    const turn = layout.slanted
      ? `translate(${x - font * 0.1} ${top - 6}) rotate(-45)`
      : `translate(${x + font * 0.35} ${top - 6}) rotate(-90)`;
    columns.append(
      svg(
        "text",
        { transform: turn, "font-size": font, fill: ink.text, ...shade("column", k) },
        cut(heat.columns[k]),
      ),
    );
  }
  into.append(rows, columns);
  drawBar(into, heat.colouring, left, top + side.height + 14, barWidth(side.width), ink);
}

/** The names of the sequences above their columns, and a line between them. */
export function drawGroups(into: SVGElement, heat: Heat, layout: Layout, ink: Ink): void {
  const { left, top, side, cell } = layout;
  const [first, last] = heat.window.columns;
  for (const { name, from, to } of heat.groups) {
    const [start, end] = [Math.max(from, first), Math.min(to, last)];
    if (start >= end) continue;
    const [x0, x1] = [start, end].map((column) => left + (column - first) * cell.width);
    const width = x1 - x0;
    // A name that is wider than its columns begins at the first of them.
    const fits = textWidth(name, 11.5) <= width;
    into.append(
      svg(
        "text",
        {
          class: "group-name", x: fits ? (x0 + x1) / 2 : x0, y: TITLE + AXIS + 11, fill: ink.text,
          "text-anchor": fits ? "middle" : "start", "font-size": 11.5, "font-weight": 650,
        },
        fits || end === last ? name : cut(name, Math.max(2, Math.floor(width / 6.5))),
      ),
    );
    if (start === first) continue;
    const line = { x1: x0, x2: x0, y1: top - 5, y2: top + side.height + 5, class: "divider", "data-column": start };
    into.append(
      svg("line", { ...line, class: null, "data-column": null, stroke: ink.paper, "stroke-width": 5 }),
      svg("line", { ...line, stroke: ink.text, "stroke-width": 2 }),
    );
  }
}
