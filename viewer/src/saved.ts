// A page's figure to be saved: title, tokens, picture and notes below each other, in light colours.

import { LIGHT, type Colouring, type Ink } from "./colours";
import { svg } from "./dom";
import { barRoom, drawBar, FONT, wrapped } from "./figure";

export interface Composition {
  title: string;
  lines: string[];
  caption: string;
  note: string;
  colours: Colouring;
  /** Draws the tokens; returns their height. */
  strip(into: SVGElement, place: { x: number; y: number; width: number }, ink: Ink): number;
  picture(into: SVGElement, room: number, ink: Ink): { width: number; height: number };
}

const WIDTH = 960;
const EDGE = 16;

export function composed(parts: Composition): SVGElement {
  const ink = LIGHT;
  const figure = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": FONT });
  const body = svg("g", { class: "picture" });
  const size = parts.picture(body, WIDTH, ink);
  const width = Math.max(WIDTH, size.width);
  let y = 20;
  const write = (text: string, font: number, fill: string, more: Record<string, unknown> = {}) => {
    for (const line of wrapped(text, font, width, Infinity)) {
      figure.append(svg("text", { x: 0, y, "font-size": font, fill, ...more }, line));
      y += font * 1.45;
    }
  };
  write(parts.title, 17, ink.text, { "font-weight": 650 });
  for (const line of parts.lines) write(line, 12.5, ink.muted);
  y += 2;
  y += parts.strip(figure, { x: 0, y, width }, ink) + 14;
  drawBar(figure, parts.colours, 0, y, width, ink);
  y += barRoom(parts.colours, width) + 8;
  if (size.height > 0) {
    body.setAttribute("transform", `translate(0 ${y})`);
    figure.append(body);
    y += size.height + 22;
  }
  write(parts.note, 11, ink.muted);
  write(parts.caption, 10, ink.muted);
  const [fullWidth, height] = [width + 2 * EDGE, y + 2 * EDGE - 12];
  figure.setAttribute("viewBox", `${-EDGE} ${-EDGE + 4} ${fullWidth} ${height}`);
  figure.setAttribute("width", String(fullWidth));
  figure.setAttribute("height", String(height));
  figure.prepend(svg("rect", { x: -EDGE, y: -EDGE + 4, width: fullWidth, height, fill: ink.paper }));
  return figure;
}
