// A row of tokens, each in the colour of what it contributes; what no token owns stands at its end.

import { isolate } from "./bidi";
import { readableOn, signed, signedBrief, signedColours, type Colouring, type Ink } from "./colours";
import { h, replace, svg } from "./dom";
import { barRoom, cut, drawBar, textWidth } from "./figure";

export interface Tokens {
  name: string; // of the group, for screen readers
  labels: string[];
  special: boolean[];
  values: ArrayLike<number>;
  chosen: number | null;
  patches?: [number, number]; // tokens that stand in a picture, first and behind the last
  beginnings?: Map<number, string>; // where a sequence begins among them, and its name
}

export interface Rest {
  label: string;
  value: number;
  title: string;
}

/** Colours that tokens and remainder share; equal numbers have equal colours in all rows. */
export function coloursOf(rows: ArrayLike<number>[], rest: Rest[], what: string, dark: boolean): Colouring {
  const all = rows.flatMap((row) => Array.from(row));
  return signedColours(all, rest.map(({ value }) => value), what, dark);
}

const MOST = 200; // tokens of a long text that are shown whatever stands beside them
const FAINT = 0.05; // of the scale: what is less is near nothing
const FEWEST = 4; // tokens that a fold hides

/** Runs of a long text's tokens that contribute next to nothing, as [first, behind the last]. */
export function folds({ labels, values, chosen, beginnings, patches }: Tokens, colours: Colouring): [number, number][] {
  const n = labels.length;
  if (patches !== undefined) return [patches];
  if (n <= MOST) return [];
  const sizes = Array.from({ length: n }, (_, k) => Math.abs(values[k]));
  const least = Math.max(FAINT * (colours.top ?? 0), [...sizes].sort((a, b) => b - a)[MOST]);
  const runs: [number, number][] = [];
  for (let first = 0, k = 0; k <= n; k++) {
    if (k < n && sizes[k] <= least && k !== chosen && !beginnings?.has(k)) continue;
    if (k - first >= FEWEST) runs.push([first, k]);
    first = k + 1;
  }
  return runs;
}

/** What a fold says: how many tokens it hides, and what they contribute together. */
function foldWords({ values }: Tokens, [first, end]: [number, number]): [string, string] {
  let sum = 0;
  for (let k = first; k < end; k++) sum += values[k];
  return [`… ${end - first} tokens`, signedBrief(sum)];
}

export class TokenStrip {
  readonly el: HTMLElement;
  private readonly row = h("div", { class: "tokens", role: "group" });
  private buttons: HTMLButtonElement[] = [];
  private opened = new Set<number>(); // first tokens of the runs that are shown
  private of: string[] = [];

  constructor(
    private readonly choose: (token: number | null) => void,
    private readonly tooltip: (lines: string[] | null, event: PointerEvent | null) => void,
  ) {
    this.el = this.row;
  }

  /** `first` is where the tokens' values begin among those of the colours. */
  draw(tokens: Tokens, colours: Colouring, first: number, rest: Rest[], restAt: number): void {
    const { labels, values, chosen } = tokens;
    const hadFocus = this.buttons.findIndex((button) => button.matches(":focus"));
    this.row.setAttribute("aria-label", tokens.name);
    if (this.of !== labels) [this.of, this.opened] = [labels, new Set()];
    const hidden = new Map(folds(tokens, colours).filter(([from]) => !this.opened.has(from)));
    this.buttons = labels.map((label, k) => {
      const colour = colours.colour(colours.at(first + k));
      const button = h(
        "button",
        {
          type: "button",
          class: tokens.special[k] ? "token special" : "token",
          "data-token": k,
          "aria-pressed": String(k === chosen),
          "aria-label": `${label}, token ${k + 1} of ${labels.length}, contributes ${signed(values[k])}`,
          // One of them takes part in tabbing; arrow keys go on from there.
          tabindex: k === (chosen ?? 0) ? 0 : -1,
          onclick: () => this.choose(k === chosen ? null : k),
          onpointermove: (event: PointerEvent) => this.tooltip([`${isolate(label)} (${k})`, signed(values[k])], event),
          onpointerleave: () => this.tooltip(null, null),
        },
        h("span", { class: "text" }, label),
        h("span", { class: "share" }, signedBrief(values[k])),
      );
      button.style.background = colour;
      button.style.color = readableOn(colour);
      return button;
    });
    let shown = 0; // from which token on
    const marked = this.buttons.flatMap((button, k) => {
      const end = hidden.get(k);
      if (end !== undefined) {
        shown = end;
        const [text, share] = foldWords(tokens, [k, end]);
        const open = () => {
          this.opened.add(k);
          this.draw(tokens, colours, first, rest, restAt);
        };
        const label = `${text} that contribute ${share} together; show them`;
        return [h("button", { type: "button", class: "token fold", "data-fold": k, "aria-label": label, title: "Show them", onclick: open },
          h("span", { class: "text" }, text), h("span", { class: "share" }, share))];
      }
      if (k < shown) return [];
      const name = tokens.beginnings?.get(k);
      return name === undefined ? [button] : [h("span", { class: "sequence", "data-sequence": name }, name), button];
    });
    replace(this.row, ...marked, ...rest.map((part, k) => restChip(part, colours, restAt + k)));
    if (hadFocus >= 0) this.buttons[Math.min(chosen ?? hadFocus, this.buttons.length - 1)]?.focus();
  }

  focus(token: number): void {
    this.buttons[token]?.focus();
  }
}

function restChip({ label, value, title }: Rest, colours: Colouring, at: number): HTMLElement {
  const colour = colours.colour(colours.at(at));
  const chip = h(
    "span",
    { class: "token rest", "data-rest": label, title, role: "note", "aria-label": `${label}: ${signed(value)}. ${title}` },
    h("span", { class: "text" }, label),
    h("span", { class: "share" }, signedBrief(value)),
  );
  chip.style.background = colour;
  chip.style.color = readableOn(colour);
  return chip;
}

const CHIP = 34; // height of a chip in a saved figure
const GAP = 4;

/** The same row in a figure to be saved; returns its height. */
export function drawStrip(
  into: SVGElement,
  tokens: Tokens,
  colours: Colouring,
  first: number,
  rest: Rest[],
  restAt: number,
  place: { x: number; y: number; width: number },
  ink: Ink,
): number {
  const { x: left, width } = place;
  let [x, y] = [left, place.y];
  const chip = (label: string, value: number, at: number, dashed: boolean, marked: boolean) => {
    const fill = colours.colour(colours.at(at));
    write(cut(label, 24), signedBrief(value), fill, readableOn(fill), dashed, marked);
  };
  const write = (text: string, share: string, fill: string, colour: string, dashed: boolean, marked: boolean) => {
    const wide = Math.max(textWidth(text, 13), textWidth(share, 10)) + 14;
    if (x + wide > left + width && x > left) [x, y] = [left, y + CHIP + GAP];
    into.append(
      svg("rect", {
        x, y, width: wide, height: CHIP, rx: 4, fill,
        stroke: marked ? ink.accent : ink.line,
        "stroke-width": marked ? 2 : 1,
        "stroke-dasharray": dashed ? "3 2" : null,
      }),
      svg("text", { x: x + wide / 2, y: y + 15, "text-anchor": "middle", "font-size": 13, fill: colour }, text),
      svg("text", { x: x + wide / 2, y: y + 28, "text-anchor": "middle", "font-size": 10, fill: colour }, share),
    );
    x += wide + GAP;
  };
  const hidden = new Map(folds(tokens, colours));
  let shown = 0;
  tokens.labels.forEach((label, k) => {
    const end = hidden.get(k);
    if (end !== undefined) {
      shown = end;
      const [text, share] = foldWords(tokens, [k, end]);
      write(text, share, ink.paper, ink.muted, true, false);
    }
    if (k < shown) return;
    const name = tokens.beginnings?.get(k);
    if (name !== undefined) {
      if (x > left) [x, y] = [left, y + CHIP + GAP];
      into.append(svg("text", { x, y: y + 21, "font-size": 12, "font-weight": 650, fill: ink.muted }, name));
      x += textWidth(name, 12) + 10;
    }
    chip(label, tokens.values[k], first + k, false, k === tokens.chosen);
  });
  rest.forEach(({ label, value }, k) => chip(label, value, restAt + k, true, false));
  return y + CHIP - place.y;
}

/** The colours' key as a small figure of its own, at most `room` wide. */
export function legend(colours: Colouring, ink: Ink, room: number): SVGElement {
  const longest = Math.max(...[colours.what, colours.scale ?? ""].map((text) => textWidth(text, 10.5)));
  const width = Math.min(room, Math.max(300, Math.ceil(longest) + 16));
  const height = barRoom(colours, width - 12) + 4;
  const figure = svg("svg", { class: "legend", width, height, viewBox: `-6 0 ${width} ${height}`, role: "img" });
  figure.setAttribute("aria-label", `Colours: ${colours.what}, from ${colours.ticks[0]?.label ?? ""} to ${colours.ticks.at(-1)?.label ?? ""}`);
  drawBar(figure, colours, 0, 2, width - 12, ink);
  return figure;
}
