// The two pictures of a cosine: lines between the tokens of two texts, and the matrix of their pairs.

import { brief, readableOn, rgb, signedColours, type Colouring, type Ink } from "./colours";
import type { Compared, Side } from "./cosine";
import { svg } from "./dom";
import { strongest, type Drawn } from "./flow";
import { cut, drawBar, textWidth } from "./figure";

export interface Chosen {
  side: "a" | "b";
  token: number;
}

export interface CosinePicture {
  compared: Compared;
  drawn: Drawn; // edges from tokens of B (sources) to tokens of A (targets)
  chosen: Chosen | null;
  bias: number;
}

/** The strongest pairs, as many as carry a share of them all. */
export function pairs(compared: Compared, share: number): Drawn {
  const [a, b] = [compared.a.labels.length, compared.b.labels.length];
  // More lines than a few for each token are a surface, not lines.
  return strongest([compared.matrix], b, share, Math.max(60, 2 * (a + b)));
}

export function drawLines(into: SVGElement, picture: CosinePicture, room: number, ink: Ink): { width: number; height: number } {
  const { compared, drawn, chosen } = picture;
  const row = (side: Side) => Math.max(17, Math.min(34, 520 / side.labels.length));
  const rows = { a: row(compared.a), b: row(compared.b) };
  const width = Math.min(room, 760);
  const label = (side: Side, font: number) => Math.max(40, ...side.labels.map((text) => textWidth(cut(text, 18), font)));
  const left = Math.min(width * 0.34, label(compared.a, 14) + 66);
  const right = width - Math.min(width * 0.34, label(compared.b, 14) + 66);
  const top = 30;
  const tallest = Math.max(rows.a * compared.a.labels.length, rows.b * compared.b.labels.length);
  const y = (side: "a" | "b", k: number) => top + (tallest - rows[side] * compared[side].labels.length) / 2 + (k + 0.5) * rows[side];
  const lines = svg("g", { class: "edges", fill: "none" });
  const most = Math.abs(drawn.edges[0]?.value ?? 1);
  const widest = Math.min(15, Math.min(rows.a, rows.b) * 0.8);
  const strong = (k: number) => {
    if (chosen === null) return true;
    return (chosen.side === "a" ? drawn.edges[k].target : drawn.edges[k].source) === chosen.token;
  };
  const order = drawn.edges.map((_, k) => k).reverse();
  order.sort((a, b) => Number(strong(a)) - Number(strong(b)));
  for (const k of order) {
    const { target, source, value } = drawn.edges[k];
    const [y0, y1] = [y("a", target), y("b", source)];
    const bend = (right - left) * 0.45;
    lines.append(
      svg("path", {
        d: `M${left},${y0}C${left + bend},${y0} ${right - bend},${y1} ${right},${y1}`,
        stroke: value > 0 ? ink.plus : ink.minus,
        "stroke-width": Math.max(0.7, (widest * Math.abs(value)) / most),
        "stroke-opacity": strong(k) ? 0.68 : 0.08,
        "data-edge": k,
        "data-sign": value > 0 ? "plus" : "minus",
        "data-faded": strong(k) ? null : "true",
      }),
    );
  }
  into.append(lines);
  drawSide(into, picture, "a", { x: left - 8, anchor: "end", bar: left - 8, y: (k) => y("a", k) }, ink);
  drawSide(into, picture, "b", { x: right + 8, anchor: "start", bar: right + 8, y: (k) => y("b", k) }, ink);
  return { width, height: top + tallest + 10 };
}

/** The tokens of one text; the number beside each is its part with all of the other text. */
function drawSide(
  into: SVGElement,
  { compared, chosen }: CosinePicture,
  name: "a" | "b",
  place: { x: number; anchor: string; bar: number; y: (k: number) => number },
  ink: Ink,
): void {
  const side = compared[name];
  const { x, anchor } = place;
  const group = svg("g", { class: `side-${name}`, "text-anchor": anchor });
  group.append(svg("text", { x, y: 14, "font-size": 12, fill: ink.muted }, name === "a" ? "text A" : "text B"));
  side.labels.forEach((text, k) => {
    const picked = chosen !== null && chosen.side === name && chosen.token === k;
    const part = svg("tspan", { "font-size": 11, fill: side.margin[k] < 0 ? ink.minus : ink.plus }, brief(side.margin[k]));
    const word = svg("tspan", { fill: picked ? ink.accent : side.special[k] ? ink.muted : ink.text, "font-weight": picked ? 700 : 400 }, cut(text, 18));
    const line = svg("text", { x, y: place.y(k) + 5, "font-size": 14, class: "pick", "data-side": name, "data-token": k });
    const both = name === "a" ? [part, "  ", word] : [word, "  ", part];
    line.setAttribute("xml:space", "preserve");
    line.append(...both);
    group.append(line);
  });
  into.append(group);
}

/** The matrix with the biases' row and column behind it: all cells together are the cosine. */
export function drawMatrix(into: SVGElement, picture: CosinePicture, room: number, ink: Ink): { width: number; height: number } {
  const { compared, bias, chosen } = picture;
  const { a, b } = compared;
  const [rows, columns] = [a.labels.length, b.labels.length];
  const font = 12;
  const left = Math.max(80, ...a.labels.map((text) => textWidth(cut(text, 16), font))) + 10;
  const slant = Math.max(60, ...b.labels.map((text) => textWidth(cut(text, 16), font))) * 0.72 + 14;
  const cell = Math.max(9, Math.min(46, (room - left - slant - 20) / (columns + 1.3), 640 / (rows + 1.3)));
  const gap = cell * 0.3;
  const top = slant + 8;
  const colours = signedColours(compared.matrix, [...a.withBias, ...b.withBias, bias], "part of the cosine", ink.dark);
  const x = (j: number) => left + j * cell + (j === columns ? gap : 0);
  const y = (i: number) => top + i * cell + (i === rows ? gap : 0);
  into.append(image(colours, rows, columns, { x: left, y: top, cell }));
  const numbers = svg("g", { class: "numbers", "text-anchor": "middle", "font-size": Math.min(11, cell * 0.3), "pointer-events": "none" });
  const write = (i: number, j: number, k: number, value: number) => {
    if (cell < 28) return;
    const fill = readableOn(colours.colour(colours.at(k)));
    numbers.append(svg("text", { x: x(j) + cell / 2, y: y(i) + cell / 2 + 4, fill }, brief(value)));
  };
  compared.matrix.forEach((value, k) => write(Math.floor(k / columns), k % columns, k, value));
  const edge = svg("g", { class: "biases" });
  const own = (i: number, j: number, k: number, value: number) => {
    edge.append(
      svg("rect", {
        x: x(j) + 0.5, y: y(i) + 0.5, width: cell - 1, height: cell - 1, fill: colours.colour(colours.at(k)),
        stroke: ink.muted, "stroke-width": 1, "stroke-dasharray": "2 2",
      }),
    );
    write(i, j, k, value);
  };
  const size = rows * columns;
  a.withBias.forEach((value, i) => own(i, columns, size + i, value));
  b.withBias.forEach((value, j) => own(rows, j, size + rows + j, value));
  own(rows, columns, size + rows + columns, bias);
  into.append(edge, numbers);
  const every = Math.max(1, Math.ceil((font + 1) / cell));
  const label = (text: string, more: Record<string, unknown>, side: "a" | "b", k: number) => {
    const picked = chosen !== null && chosen.side === side && chosen.token === k;
    const last = k === (side === "a" ? rows : columns);
    return svg("text", {
      "font-size": font, fill: picked ? ink.accent : last ? ink.muted : ink.text, "font-style": last ? "italic" : null,
      "font-weight": picked ? 700 : 400, class: last ? null : "pick", "data-side": last ? null : side, "data-token": last ? null : k, ...more,
    }, cut(text, 16));
  };
  [...a.labels, "biases of A"].forEach((text, i) => {
    if (i % every === 0 || i === rows) into.append(label(text, { x: left - 6, y: y(i) + cell / 2 + 4, "text-anchor": "end" }, "a", i));
  });
  [...b.labels, "biases of B"].forEach((text, j) => {
    const at = `translate(${x(j) + cell / 2 + 3} ${top - 6}) rotate(-46)`;
    if (j % every === 0 || j === columns) into.append(label(text, { transform: at }, "b", j));
  });
  if (chosen !== null) {
    const box = chosen.side === "a"
      ? { x: left, y: y(chosen.token), width: x(columns) + cell - left, height: cell }
      : { x: x(chosen.token), y: top, width: cell, height: y(rows) + cell - top };
    into.append(svg("rect", { ...box, fill: "none", stroke: ink.accent, "stroke-width": 2, "pointer-events": "none" }));
  }
  const end = y(rows) + cell;
  drawBar(into, colours, left, end + 14, Math.max(180, cell * columns), ink);
  return { width: Math.max(x(columns) + cell + slant, left + 200), height: end + 60 };
}

/** One pixel per pair, which browsers enlarge; quicker than a rectangle for each. */
function image(colours: Colouring, rows: number, columns: number, { x, y, cell }: { x: number; y: number; cell: number }): SVGElement {
  const canvas = document.createElement("canvas");
  // Each pair is more than a pixel, for programs that blur pictures when they enlarge them.
  const scale = rows * columns > 10_000 ? 2 : 8;
  canvas.width = columns * scale;
  canvas.height = rows * scale;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  for (let k = 0; k < rows * columns; k++) {
    context.fillStyle = `rgb(${rgb(colours.colour(colours.at(k))).join()})`;
    context.fillRect((k % columns) * scale, Math.floor(k / columns) * scale, scale, scale);
  }
  return svg("image", {
    x, y, width: columns * cell, height: rows * cell, href: canvas.toDataURL(), preserveAspectRatio: "none",
    "image-rendering": "pixelated", "data-cells": "matrix",
  });
}
