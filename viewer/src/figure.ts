// What every figure shares: its font, labels that fit, and the bar of colours.

import type { Colouring, Ink } from "./colours";
import { svg } from "./dom";

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif';
const LONGEST = 20; // characters of a label

let measuring: CanvasRenderingContext2D | null = null;

export function textWidth(text: string, size: number): number {
  measuring ??= document.createElement("canvas").getContext("2d");
  if (measuring === null) return text.length * size * 0.6;
  measuring.font = `${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

/** The size at which a text fits into a width; it stays readable, and is at most `size`. */
export function fittingSize(text: string, size: number, width: number): number {
  return Math.max(9, Math.min(size, (size * width) / Math.max(1, textWidth(text, size))));
}

const measured = new WeakMap<string[], Map<string, number>>();

/** The width of the widest of some labels at a size of 10; measuring many takes long. */
export function widestLabel(labels: string[], from: number, to: number): number {
  const known = measured.get(labels) ?? new Map<string, number>();
  measured.set(labels, known);
  const key = `${from}:${to}`;
  let width = known.get(key);
  if (width === undefined) {
    width = 0;
    for (let k = from; k < to; k++) width = Math.max(width, textWidth(cut(labels[k]), 10));
    known.set(key, width);
  }
  return width;
}

export function cut(label: string, most = LONGEST): string {
  const characters = [...label];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : label;
}

/** A text in lines that fit into a width; of more lines than `most`, the last one goes on. */
export function wrapped(text: string, size: number, width: number, most = 3): string[] {
  const lines: string[] = [];
  const words = text.split(/\s+/).filter(Boolean);
  for (const word of words.flatMap((word) => pieces(word, size, width))) {
    const longer = lines.length > 0 ? `${lines[lines.length - 1]} ${word}` : word;
    const fits = textWidth(longer, size) <= width || lines.length === most;
    if (lines.length > 0 && fits) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** A word in pieces that fit into a width; scripts without spaces have very long words. */
function pieces(word: string, size: number, width: number): string[] {
  if (textWidth(word, size) <= width) return [word];
  const cut: string[] = [];
  for (const character of word) {
    const longer = `${cut.at(-1) ?? ""}${character}`;
    if (cut.length > 0 && textWidth(longer, size) <= width) cut[cut.length - 1] = longer;
    else cut.push(character);
  }
  return cut;
}

const CAPTION = 10; // size of a saved figure's caption

/** Writes a caption below a figure that is to be saved, which grows by as many lines as it takes. */
export function addCaption(figure: SVGElement, caption: string | string[], ink: Ink): void {
  const [x, y, width, height] = (figure.getAttribute("viewBox") ?? "").split(" ").map(Number);
  const edge = 8;
  const lines = [caption].flat().flatMap((text) => wrapped(text, CAPTION, 0.97 * (width - 2 * edge), Infinity));
  const taller = height + lines.length * LINE + edge;
  figure.setAttribute("viewBox", [x, y, width, taller].join(" "));
  figure.setAttribute("height", String(taller));
  figure.querySelector(":scope > rect")?.setAttribute("height", String(taller));
  lines.forEach((line, k) => {
    const place = { x: x + edge, y: y + height + (k + 0.7) * LINE, "font-size": CAPTION };
    figure.append(svg("text", { ...place, fill: ink.muted, class: "caption" }, line));
  });
}

const WORDS = 10.5; // size of the words below a bar
const LINE = 13;
const LONGEST_BAR = 320;

/** What the colours measure and how, in lines below the bar. */
function barLines({ what, scale }: Colouring, width: number): string[] {
  return [what, ...(scale ? [scale] : [])].flatMap((text) => wrapped(text, WORDS, Math.max(width, 180), Infinity));
}

/** The height of a bar with its words. */
export function barRoom(colouring: Colouring, width: number): number {
  return 27 + LINE * barLines(colouring, width).length;
}

/** The legend: a bar of colours with ticks, what they measure and on which scale. */
export function drawBar(
  into: SVGElement,
  colouring: Colouring,
  x: number,
  y: number,
  width: number,
  ink: Ink,
): void {
  const length = Math.min(width, LONGEST_BAR) - (colouring.beyond ? 20 : 0);
  const pieces = 64;
  const piece = (from: number, wide: number, fill: string) =>
    into.append(svg("rect", { x: from, y, width: wide, height: 8, fill }));
  for (let k = 0; k < pieces; k++) {
    piece(x + (k * length) / pieces, length / pieces + 0.5, colouring.colour((k + 0.5) / pieces));
  }
  if (colouring.beyond) piece(x + length + 4, 16, colouring.colour(2));
  let free = Infinity; // where the label to the right begins: of two that would touch, that one stays
  for (const { t, label } of [...colouring.ticks].reverse()) {
    const at = x + t * length;
    const anchor = t < 0.04 ? "start" : t > 0.96 ? "end" : "middle";
    const width = textWidth(label, 10);
    const left = at - width * { start: 0, middle: 0.5, end: 1 }[anchor];
    if (left + width + 4 > free) continue;
    free = left;
    into.append(svg("line", { x1: at, x2: at, y1: y + 8, y2: y + 11, stroke: ink.muted }));
    into.append(
      svg("text", { x: at, y: y + 21, "text-anchor": anchor, "font-size": 10, fill: ink.text }, label),
    );
  }
  barLines(colouring, width).forEach((line, k) =>
    into.append(svg("text", { x, y: y + 36 + LINE * k, "font-size": WORDS, fill: ink.muted, class: "scale" }, line)),
  );
}
