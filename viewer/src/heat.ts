// A heat map: cells on a canvas, everything else as SVG above it. Saved figures are SVG throughout.

import { LIGHT, pixels, readableOn, type Ink } from "./colours";
import { h, replace, svg } from "./dom";
import { addCaption, FONT, textWidth } from "./figure";
import { drawFrame, drawGroups, layoutOf, type Cell, type Heat, type HeatActions, type Layout, type Pin } from "./heatframe";

function sizeOf({ rows, columns }: Heat): { rows: number; columns: number } {
  return { rows: rows.length, columns: columns.length };
}

/** Whether a cell has a number: attention allows the pair, and it is not left out. */
function isWritten({ mask, colouring }: Heat, k: number): boolean {
  return (mask === null || mask[k] > 0) && !(colouring.at(k) < 0);
}

/** The size of numbers in cells, or 0 where they would not fit. */
function numberSize(heat: Heat, cell: Layout["cell"]): number {
  const [row, lastRow] = heat.window.rows;
  const [column, lastColumn] = heat.window.columns;
  if (cell.width < 30 || cell.height < 30 || (lastRow - row) * (lastColumn - column) > 400) return 0;
  let widest = 1;
  for (let i = row; i < lastRow; i++) {
    for (let j = column; j < lastColumn; j++) {
      const k = i * heat.columns.length + j;
      if (!isWritten(heat, k)) continue;
      widest = Math.max(widest, textWidth(heat.brief(heat.map[k]), 10));
    }
  }
  const size = Math.min(13, (10 * (cell.width - 6)) / widest);
  return size >= 8.5 ? size : 0;
}

/** The chosen row, column or pair, and numbers where cells have room for them. */
function drawMarks(into: SVGElement, heat: Heat, layout: Layout, ink: Ink): void {
  const { left, top, side, cell } = layout;
  const [row, lastRow] = heat.window.rows;
  const [column, lastColumn] = heat.window.columns;
  const { pin, pair } = heat;
  const size = numberSize(heat, cell);
  if (size > 0) {
    const numbers = svg("g", { class: "numbers", "pointer-events": "none" });
    for (let i = row; i < lastRow; i++) {
      for (let j = column; j < lastColumn; j++) {
        const k = i * heat.columns.length + j;
        if (!isWritten(heat, k)) continue;
        numbers.append(
          svg(
            "text",
            {
              x: left + (j - column + 0.5) * cell.width,
              y: top + (i - row + 0.5) * cell.height + size * 0.35,
              "text-anchor": "middle",
              "font-size": size,
              fill: readableOn(heat.colouring.colour(heat.colouring.at(k))),
            },
            heat.brief(heat.map[k]),
          ),
        );
      }
    }
    into.append(numbers);
  }
  if (pin !== null) {
    const across = pin.axis === "row";
    const thick = across ? cell.height : cell.width;
    const from = (pin.index - (across ? row : column)) * thick;
    const length = across ? side.height : side.width;
    const veil = (start: number, end: number) => {
      if (end <= start) return;
      into.append(
        svg("rect", {
          x: across ? left : left + start,
          y: across ? top + start : top,
          width: across ? side.width : end - start,
          height: across ? end - start : side.height,
          fill: ink.paper,
          opacity: 0.72,
        }),
      );
    };
    veil(0, Math.min(length, from));
    veil(Math.max(0, from + thick), length);
  }
  drawGroups(into, heat, layout, ink);
  if (pair !== null) {
    const inside =
      pair.target >= row && pair.target < lastRow && pair.source >= column && pair.source < lastColumn;
    if (inside) {
      const [width, height] = [Math.max(cell.width, 7), Math.max(cell.height, 7)];
      const x = left + (pair.source - column + 0.5) * cell.width - width / 2;
      const y = top + (pair.target - row + 0.5) * cell.height - height / 2;
      const box = { x, y, width, height, fill: "none", class: "pair-mark" };
      into.append(svg("rect", { ...box, stroke: ink.paper, "stroke-width": 4.5 }));
      into.append(svg("rect", { ...box, stroke: ink.accent, "stroke-width": 2.5 }));
    }
  }
}

export class HeatView {
  readonly el: HTMLElement;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly overlay = svg("svg", { class: "overlay", role: "img", tabindex: 0 });
  private readonly marks = svg("g");
  private readonly hovering = svg("g", { "pointer-events": "none" });
  private heat: Heat | null = null;
  private layout: Layout | null = null;
  private cells: HTMLCanvasElement | null = null;
  private ink: Ink = LIGHT;
  private drag: { x: number; y: number; cell: Cell } | null = null;

  constructor(
    private readonly actions: HeatActions,
    name: string,
  ) {
    this.el = h("div", { class: "figure", "data-figure": name }, this.canvas, this.overlay);
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.addEventListener("pointermove", (event) => this.move(event));
    overlay.addEventListener("pointerleave", () => this.leave());
    overlay.addEventListener("pointerdown", (event) => this.press(event));
    overlay.addEventListener("pointerup", (event) => this.release(event));
    overlay.addEventListener("dblclick", () => this.actions.zoom(null));
  }

  draw(heat: Heat, room: { width: number; height: number }, ink: Ink): void {
    this.heat = heat;
    this.ink = ink;
    this.layout = layoutOf(heat, room);
    this.cells = pixels(heat.colouring, sizeOf(heat), heat.mask, ink.absent);
    const { layout, canvas, overlay } = this;
    const { width, height } = layout;
    overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    overlay.setAttribute("width", String(width));
    overlay.setAttribute("height", String(height));
    overlay.setAttribute("font-family", FONT);
    overlay.setAttribute("aria-label", this.description(heat));
    this.el.style.width = `${width}px`;
    this.el.style.height = `${height}px`;
    canvas.style.left = `${layout.left}px`;
    canvas.style.top = `${layout.top}px`;
    canvas.style.width = `${layout.side.width}px`;
    canvas.style.height = `${layout.side.height}px`;
    this.paint(canvas, Math.min(3, window.devicePixelRatio || 1));
    replace(overlay);
    drawFrame(overlay, heat, layout, ink);
    replace(this.marks);
    drawMarks(this.marks, heat, layout, ink);
    replace(this.hovering);
    overlay.append(this.marks, this.hovering);
  }

  /** The figure as SVG alone, on white; its caption is left to those who put several together. */
  saved(captioned = true): SVGElement {
    const heat = this.heat as Heat;
    const light: Heat = { ...heat, colouring: heat.recolour(false) };
    const layout = this.layout as Layout;
    const { width, height } = layout;
    const figure = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `-8 -8 ${width + 16} ${height + 16}`,
      width: width + 16,
      height: height + 16,
      "font-family": FONT,
    });
    const ground = { x: -8, y: -8, width: width + 16, height: height + 16 };
    figure.append(svg("rect", { ...ground, fill: LIGHT.paper }));
    drawFrame(figure, light, layout, LIGHT);
    this.drawCells(figure, light, layout);
    drawMarks(figure, light, layout, LIGHT);
    if (captioned) addCaption(figure, heat.caption, LIGHT);
    return figure;
  }

  /** Rectangles while they are few, else one picture. */
  private drawCells(into: SVGElement, heat: Heat, layout: Layout): void {
    const [row, lastRow] = heat.window.rows;
    const [column, lastColumn] = heat.window.columns;
    const { left, top, cell, side } = layout;
    const group = svg("g", { class: "cells", "shape-rendering": "crispEdges" });
    into.append(group);
    if ((lastRow - row) * (lastColumn - column) > 4096) {
      const kept = this.cells;
      this.cells = pixels(heat.colouring, sizeOf(heat), heat.mask, LIGHT.absent);
      const canvas = document.createElement("canvas");
      this.paint(canvas, Math.max(2, Math.ceil(1200 / side.width)));
      this.cells = kept;
      const place = { x: left, y: top, width: side.width, height: side.height };
      group.append(svg("image", { ...place, href: canvas.toDataURL("image/png") }));
      return;
    }
    for (let i = row; i < lastRow; i++) {
      for (let j = column; j < lastColumn; j++) {
        const k = i * heat.columns.length + j;
        const allowed = heat.mask === null || heat.mask[k];
        group.append(
          svg("rect", {
            x: left + (j - column) * cell.width,
            y: top + (i - row) * cell.height,
            width: cell.width,
            height: cell.height,
            fill: allowed ? heat.colouring.colour(heat.colouring.at(k)) : LIGHT.absent,
          }),
        );
      }
    }
  }

  private paint(canvas: HTMLCanvasElement, density: number): void {
    const { window: shown } = this.heat as Heat;
    const { side, cell } = this.layout as Layout;
    canvas.width = Math.max(1, Math.round(side.width * density));
    canvas.height = Math.max(1, Math.round(side.height * density));
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    // Where a cell is smaller than a pixel, neighbours are averaged rather than dropped.
    context.imageSmoothingEnabled = Math.min(cell.width, cell.height) * density < 1;
    context.imageSmoothingQuality = "high";
    const [row, lastRow] = shown.rows;
    const [column, lastColumn] = shown.columns;
    context.drawImage(
      this.cells as HTMLCanvasElement,
      column,
      row,
      lastColumn - column,
      lastRow - row,
      0,
      0,
      canvas.width,
      canvas.height,
    );
    if (Math.min(cell.width, cell.height) >= 14) {
      // A hair between large cells.
      context.strokeStyle = this.ink.paper;
      context.lineWidth = Math.max(1, density);
      context.beginPath();
      for (let k = 1; k < lastColumn - column; k++) {
        const x = Math.round(k * cell.width * density);
        context.moveTo(x, 0);
        context.lineTo(x, canvas.height);
      }
      for (let k = 1; k < lastRow - row; k++) {
        const y = Math.round(k * cell.height * density);
        context.moveTo(0, y);
        context.lineTo(canvas.width, y);
      }
      context.stroke();
    }
  }

  private description(heat: Heat): string {
    const named = heat.groups.map(({ name, from, to }) => `${to - from} of the ${name}`).join(", ");
    const sequences = named && `: ${named}`;
    return (
      `${heat.title}: heat map, ${heat.rows.length} targets (rows) by ${heat.columns.length} sources (columns${sequences}). ` +
      "Shift and arrow keys move from pair to pair, R pins the row, C the column."
    );
  }

  /** Where a pointer is: in a cell, or at the label of a row or a column. */
  private find(event: PointerEvent): { cell?: Cell; pin?: Pin } {
    const { heat, layout } = this;
    if (heat === null || layout === null) return {};
    const box = this.overlay.getBoundingClientRect();
    const scale = layout.width / box.width;
    const x = (event.clientX - box.left) * scale - layout.left;
    const y = (event.clientY - box.top) * scale - layout.top;
    const [row, lastRow] = heat.window.rows;
    const [column, lastColumn] = heat.window.columns;
    const target = row + Math.floor(y / layout.cell.height);
    const source = column + Math.floor(x / layout.cell.width);
    const inRows = target >= row && target < lastRow;
    const inColumns = source >= column && source < lastColumn;
    if (inRows && inColumns) return { cell: { target, source } };
    if (inRows && x < 0) return { pin: { axis: "row", index: target } };
    if (inColumns && y < 0 && y > -(layout.top - layout.labels)) {
      return { pin: { axis: "column", index: source } };
    }
    return {};
  }

  private move(event: PointerEvent): void {
    const { cell, pin } = this.find(event);
    const overlay = this.overlay as unknown as HTMLElement;
    overlay.style.cursor = cell ? "crosshair" : pin ? "pointer" : "default";
    if (this.drag !== null && cell !== undefined) this.band(this.drag.cell, cell);
    else this.cross(cell ?? null);
    this.actions.hover(cell ?? null, event);
  }

  private leave(): void {
    replace(this.hovering);
    this.drag = null;
    this.actions.hover(null, null);
  }

  private press(event: PointerEvent): void {
    const { cell } = this.find(event);
    if (cell !== undefined && event.button === 0) {
      this.drag = { x: event.clientX, y: event.clientY, cell };
    }
  }

  private release(event: PointerEvent): void {
    const { cell, pin } = this.find(event);
    const start = this.drag;
    this.drag = null;
    if (pin !== undefined && start === null) return this.actions.pin(pin);
    if (start === null || cell === undefined) return;
    const far = Math.hypot(event.clientX - start.x, event.clientY - start.y) > 12;
    const wide = Math.abs(cell.target - start.cell.target) >= 1;
    if (!far || !wide || cell.source === start.cell.source) {
      return this.actions.pair(cell);
    }
    const span = (a: number, b: number): [number, number] => [Math.min(a, b), Math.max(a, b) + 1];
    this.actions.zoom({
      rows: span(start.cell.target, cell.target),
      columns: span(start.cell.source, cell.source),
    });
  }

  /** Outlines of the row and the column of a cell. */
  cross(cell: Cell | null): void {
    const { heat, layout, ink } = this;
    replace(this.hovering);
    if (cell === null || heat === null || layout === null) return;
    const x = layout.left + (cell.source - heat.window.columns[0]) * layout.cell.width;
    const y = layout.top + (cell.target - heat.window.rows[0]) * layout.cell.height;
    const line = { fill: "none", stroke: ink.text, "stroke-opacity": 0.7 };
    const { side, cell: size } = layout;
    this.hovering.append(
      svg("rect", { ...line, x: layout.left, y, width: side.width, height: size.height }),
      svg("rect", { ...line, x, y: layout.top, width: size.width, height: side.height }),
    );
  }

  private band(from: Cell, to: Cell): void {
    const { heat, layout, ink } = this;
    if (heat === null || layout === null) return;
    const { cell } = layout;
    const column = Math.min(from.source, to.source) - heat.window.columns[0];
    const row = Math.min(from.target, to.target) - heat.window.rows[0];
    replace(
      this.hovering,
      svg("rect", {
        x: layout.left + column * cell.width,
        y: layout.top + row * cell.height,
        width: (Math.abs(from.source - to.source) + 1) * cell.width,
        height: (Math.abs(from.target - to.target) + 1) * cell.height,
        fill: ink.accent,
        "fill-opacity": 0.15,
        stroke: ink.accent,
      }),
    );
  }
}
