// The page of a cosine: two texts with lines between their tokens, the matrix, and what no pair owns.

import { isolated } from "./bidi";
import type { Chrome } from "./chrome";
import { number, signed, type Colouring } from "./colours";
import { CosineItem, packedCosines, type Compared } from "./cosine";
import { drawLines, drawMatrix, pairs, type Chosen, type CosinePicture } from "./cosineview";
import { buttons, h, list, replace, svg } from "./dom";
import type { Drawn } from "./flow";
import { FONT } from "./figure";
import { bars } from "./mapview";
import { choice, place, ResultPage } from "./resultpage";
import type { Row } from "./save";
import { composed } from "./saved";
import { coloursOf, drawStrip, legend, TokenStrip, type Rest, type Tokens } from "./tokenstrip";

const VIEWS = ["lines", "matrix"] as const;
const LEVELS = ["subwords", "words"] as const;
const SHARES = ["80", "50", "95"] as const;
const LISTED = 12;

export interface CosineState {
  item: number;
  view: (typeof VIEWS)[number];
  level: (typeof LEVELS)[number];
  share: (typeof SHARES)[number];
  token: Chosen | null;
}

export class CosinePage extends ResultPage<CosineItem, CosineState> {
  readonly kind = "cosine";
  readonly guide =
    "Each number says how much a token has of the cosine of the two texts’ vectors, together with all of the other text. " +
    "The lines and the matrix split it into pairs of tokens; what the model’s biases add belongs to no pair and stands apart. " +
    "All of it is exact for the network with these texts’ attention weights, deviations of norms and slopes of activations held fixed.";
  private readonly title = h("h2", { class: "question" });
  private readonly strips = (["a", "b"] as const).map(
    (side) =>
      new TokenStrip(
        (token) => this.update({ token: token === null ? null : { side, token } }),
        (lines, event) => this.chrome.tooltip(lines, event),
      ),
  );
  private readonly rest = h("div", { class: "tokens", role: "group", "aria-label": "What no pair of tokens owns" });
  private readonly sum = h("p", { class: "sum" });
  private readonly key_ = h("div", { class: "key" });
  private readonly note = h("p", { class: "note" });
  private readonly stage = h("div", { class: "stage" });
  private readonly aside = h("aside", { class: "aside", "aria-label": "Details" });
  private readonly controls;
  private compared!: Compared;
  private strong!: Drawn;

  constructor(chrome: Chrome) {
    super(chrome);
    this.controls = this.makeControls();
    const { item, view, level, share } = this.controls;
    const named = (letter: string, strip: TokenStrip) => h("div", { class: "text-row" }, h("span", { class: "letter", "aria-hidden": "true" }, letter), strip.el);
    this.el.append(
      this.missing,
      h("div", { class: "toolbar" }, item.el),
      this.title,
      named("A", this.strips[0]),
      named("B", this.strips[1]),
      h("div", { class: "text-row" }, h("span", { class: "letter", "aria-hidden": "true" }, ""), this.rest),
      this.sum,
      this.key_,
      this.choices(view.el, level.el, share.el),
      this.note,
      h("div", { class: "mapview" }, this.stage, this.aside),
    );
  }

  // The state ----------------------------------------------------------------------------------

  protected read(words: Record<string, string>): CosineState {
    const item = place(words.item, this.items.length) ?? 0;
    const { header, hasWords } = this.items[item];
    const [, side, at] = /^([ab]):(\d+)$/.exec(words.token ?? "") ?? [];
    const token = side === undefined ? null : place(at, header[side as "a" | "b"].tokens.length);
    return {
      item,
      view: choice(words.view, VIEWS),
      level: hasWords ? choice(words.level, LEVELS) : "subwords",
      share: choice(words.share, SHARES),
      token: token === null ? null : { side: side as "a" | "b", token },
    };
  }

  protected write(state: CosineState): Record<string, string> {
    const words: Record<string, string> = {};
    if (state.item > 0) words.item = String(state.item);
    if (state.view !== VIEWS[0]) words.view = state.view;
    if (state.level !== LEVELS[0]) words.level = state.level;
    if (state.share !== SHARES[0]) words.share = state.share;
    if (state.token !== null) words.token = `${state.token.side}:${state.token.token}`;
    return words;
  }

  key(event: KeyboardEvent, from: HTMLElement): boolean {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const other = event.key === "ArrowUp" ? "a" : event.key === "ArrowDown" ? "b" : null;
    const { token } = this.state;
    if (step === undefined && other === null) {
      if (event.key !== "Escape" || token === null) return false;
      this.update({ token: null });
      return true;
    }
    const side = other ?? token?.side ?? "a";
    const n = this.compared[side].labels.length;
    const next = Math.max(0, Math.min(n - 1, token === null ? 0 : token.token + (step ?? 0)));
    this.update({ token: { side, token: next } });
    const { labels, margin } = this.compared[side];
    this.chrome.say(`text ${side.toUpperCase()}: ${labels[next]}, has ${signed(margin[next])} of the cosine`);
    if (from.dataset.token !== undefined) this.strips[side === "a" ? 0 : 1].focus(next);
    return true;
  }

  // Drawing ------------------------------------------------------------------------------------

  protected async draw(stale: () => boolean): Promise<void> {
    const { header } = this.item;
    const { state } = this;
    const compared = await this.item.at(state.level);
    if (stale()) return;
    this.compared = compared;
    if (state.token !== null && state.token.token >= compared[state.token.side].labels.length) state.token = null;
    this.strong = pairs(compared, Number(state.share) / 100);
    this.drawControls();
    this.title.textContent = `Cosine ${number(header.value)}`;
    const { colours, rows, rest } = this.rows(this.chrome.ink.dark);
    this.strips[0].draw(rows[0], colours, 0, [], 0);
    this.strips[1].draw(rows[1], colours, rows[0].labels.length, [], 0);
    const lone = new TokenStrip(() => undefined, () => undefined);
    const none = { name: "What no pair of tokens owns", labels: [], special: [], values: [], chosen: null };
    lone.draw(none, colours, 0, rest, rows[0].labels.length + rows[1].labels.length);
    replace(this.rest, ...lone.el.children);
    this.sum.textContent = this.total();
    replace(this.key_, legend(colours, this.chrome.ink, this.chrome.width));
    this.drawPicture();
    this.listPairs();
    this.chrome.root.dataset.view = state.view;
    this.chrome.root.dataset.token = state.token === null ? "" : `${state.token.side}:${state.token.token}`;
  }

  private drawControls(): void {
    const { state, controls, items } = this;
    const name = (item: CosineItem, k: number) => `${k + 1}: ${item.header.a.text ?? "A"} / ${item.header.b.text ?? "B"}`.slice(0, 90);
    controls.item.set(String(state.item), items.map((item, k) => [String(k), name(item, k)]));
    controls.view.set(state.view);
    controls.level.set(state.level, this.item.hasWords);
    controls.share.set(state.share);
    controls.share.el.hidden = state.view !== "lines";
  }

  /** Both texts with each token's part beside all of the other text, and what no pair owns. */
  private rows(dark: boolean): { rows: [Tokens, Tokens]; rest: Rest[]; colours: Colouring } {
    const { compared, state } = this;
    const row = (side: "a" | "b"): Tokens => ({
      name: `Text ${side.toUpperCase()}, and what its tokens have of the cosine`,
      labels: compared[side].labels,
      special: compared[side].special,
      values: compared[side].margin,
      chosen: state.token?.side === side ? state.token.token : null,
    });
    const rest = Object.entries(this.item.header.remainder).map(([label, value]) => ({
      label,
      value,
      title: "Part of the remainder: no pair of tokens owns it.",
    }));
    const what = "part of the cosine, with all of the other text: warm colours raise it, blue ones lower it";
    return { rows: [row("a"), row("b")], rest, colours: coloursOf([compared.a.margin, compared.b.margin], rest, what, dark) };
  }

  private total(): string {
    const { matrix } = this.compared;
    const ofPairs = matrix.reduce((sum, value) => sum + value, 0);
    const rest = Object.values(this.item.header.remainder).reduce((sum, value) => sum + value, 0);
    return `${number(ofPairs)} from ${matrix.length.toLocaleString("en")} pairs of tokens ${rest < 0 ? "−" : "+"} ${number(Math.abs(rest))} from no pair = ${number(this.item.header.value)}`;
  }

  private picture(): CosinePicture {
    return { compared: this.compared, drawn: this.strong, chosen: this.state.token, bias: this.item.header.bias };
  }

  private drawPicture(): void {
    const lines = this.state.view === "lines";
    const figure = svg("svg", { role: "img", "data-figure": this.state.view, "font-family": FONT });
    const draw = lines ? drawLines : drawMatrix;
    const { width, height } = draw(figure, this.picture(), this.room(), this.chrome.ink);
    figure.setAttribute("viewBox", `0 0 ${width} ${height}`);
    figure.setAttribute("width", String(width));
    figure.setAttribute("height", String(height));
    figure.setAttribute("aria-label", `${lines ? "Lines between the tokens of two texts" : "Matrix of pairs of tokens"}. The list beside it names the largest pairs.`);
    figure.addEventListener("pointermove", (event) => this.chrome.tooltip(this.lines(event as PointerEvent), event as PointerEvent));
    figure.addEventListener("pointerleave", () => this.chrome.tooltip(null, null));
    figure.addEventListener("click", (event) => this.click(event.target as SVGElement));
    replace(this.stage, figure);
    this.stage.dataset.edges = String(this.strong.edges.length);
    this.note.textContent = this.sentences();
  }

  private sentences(): string {
    if (this.state.view === "matrix") {
      return "Rows are tokens of A, columns tokens of B. The last row and column are the parts of the biases, so that all cells together are the cosine.";
    }
    const { edges, share, count } = this.strong;
    return (
      "Lines are as wide as what a pair of tokens adds to the cosine; warm colours raise it, blue ones lower it. " +
      "The number beside a token is its part with all of the other text, biases included. " +
      `${edges.length.toLocaleString("en")} of ${count.toLocaleString("en")} pairs are drawn; they carry ${(100 * share).toFixed(0)} % of all parts, ` +
      `and ${(100 * (1 - share)).toFixed(0)} % is left out.`
    );
  }

  private click(mark: SVGElement): void {
    const { side, token } = (mark.closest("[data-side]") as SVGElement | null)?.dataset ?? {};
    if (side === undefined || token === undefined) return;
    const old = this.state.token;
    const same = old?.side === side && old.token === Number(token);
    this.update({ token: same ? null : { side: side as "a" | "b", token: Number(token) } });
  }

  private lines(event: PointerEvent): string[] | null {
    const { a, b, matrix } = this.compared;
    const mark = event.target as SVGElement;
    const pair = (k: number) => {
      const [i, j] = [Math.floor(k / b.labels.length), k % b.labels.length];
      return [`A ${a.labels[i]} (${i})`, `B ${b.labels[j]} (${j})`, signed(matrix[k])];
    };
    if (mark.dataset.edge !== undefined) {
      const { target, source } = this.strong.edges[Number(mark.dataset.edge)];
      return pair(target * b.labels.length + source);
    }
    if (mark.dataset.cells === undefined) return null;
    const box = mark.getBoundingClientRect();
    const i = Math.floor(((event.clientY - box.top) / box.height) * a.labels.length);
    const j = Math.floor(((event.clientX - box.left) / box.width) * b.labels.length);
    const inside = i >= 0 && i < a.labels.length && j >= 0 && j < b.labels.length;
    return inside ? pair(i * b.labels.length + j) : null;
  }

  private listPairs(): void {
    const { compared, state } = this;
    const { a, b, matrix } = compared;
    const columns = b.labels.length;
    const { token } = state;
    const parts = Array.from(matrix, (value, k) => ({ value, i: Math.floor(k / columns), j: k % columns }))
      .filter(({ i, j, value }) => value !== 0 && (token === null || (token.side === "a" ? i : j) === token.token))
      .sort((x, y) => Math.abs(y.value) - Math.abs(x.value))
      .slice(0, token === null ? LISTED : 2 * LISTED);
    const chosen = token === null ? null : compared[token.side];
    replace(
      this.aside,
      h("h3", {}, chosen === null || token === null ? "Strongest pairs" : `${token.side.toUpperCase()}: ${chosen.labels[token.token]}`),
      chosen !== null && token !== null &&
        h("p", { class: "note pair-value" }, `${signed(chosen.margin[token.token])} with all of the other text, of which ${signed(chosen.withBias[token.token])} with its biases`),
      h("p", { class: "note" }, "A – B"),
      bars(
        parts.map(({ value, i, j }) => ({
          label: isolated`${a.labels[i]} – ${b.labels[j]}`,
          value,
          go: () => this.update({ token: token?.side === "a" ? { side: "b", token: j } : { side: "a", token: i } }),
        })),
        signed,
      ),
      token !== null && h("button", { type: "button", onclick: () => this.update({ token: null }) }, "Clear (Esc)"),
    );
  }

  private room(): number {
    const { width } = this.chrome;
    return width > 860 ? width - 300 : width;
  }

  private makeControls() {
    return {
      item: list("Pair", (value) => this.update({ item: Number(value), token: null }), "item"),
      view: buttons<CosineState["view"]>(
        "View",
        [
          { value: "lines", label: "Lines" },
          { value: "matrix", label: "Matrix" },
        ],
        (view) => this.update({ view }),
        "view",
      ),
      level: buttons<CosineState["level"]>(
        "Level",
        [
          { value: "subwords", label: "subwords" },
          { value: "words", label: "words", title: "A word’s tokens are summed" },
        ],
        (level) => this.update({ level, token: null }),
        "level",
      ),
      share: buttons<CosineState["share"]>(
        "Drawn",
        [
          { value: "50", label: "50 %", title: "The strongest pairs that carry half of all parts" },
          { value: "80", label: "80 %" },
          { value: "95", label: "95 %" },
        ],
        (share) => this.update({ share }),
        "share",
      ),
    };
  }

  // Saving -------------------------------------------------------------------------------------

  fileName(): string {
    return `${this.item.header.model}-cosine-${this.state.view}`.replace(/[^\w.-]+/g, "_");
  }

  async figure(): Promise<SVGElement> {
    const { header } = this.item;
    const { rows, rest, colours } = this.rows(false);
    const first = rows[0].labels.length;
    const none = { ...rows[0], labels: [], values: [], special: [], chosen: null };
    return composed({
      title: `Cosine ${number(header.value)}`,
      lines: [this.total()],
      caption: [...this.provenance(header), this.version].join(" · "),
      colours,
      strip: (into, at, ink) => {
        let height = drawStrip(into, rows[0], colours, 0, [], 0, at, ink) + 10;
        height += drawStrip(into, rows[1], colours, first, [], 0, { ...at, y: at.y + height }, ink) + 10;
        return height + drawStrip(into, none, colours, 0, rest, first + rows[1].labels.length, { ...at, y: at.y + height }, ink);
      },
      picture: (into, room, ink) => (this.state.view === "lines" ? drawLines : drawMatrix)(into, this.picture(), room, ink),
      note: this.note.textContent ?? "",
    });
  }

  async table(): Promise<Row[]> {
    const { a, b, matrix } = this.compared;
    const columns = b.labels.length;
    const rows: Row[] = [["a", "a_token", "b", "b_token", "value"]];
    matrix.forEach((value, k) => {
      const [i, j] = [Math.floor(k / columns), k % columns];
      rows.push([i, a.labels[i], j, b.labels[j], value]);
    });
    a.withBias.forEach((value, i) => rows.push([i, a.labels[i], "bias", "", value]));
    b.withBias.forEach((value, j) => rows.push(["bias", "", j, b.labels[j], value]));
    rows.push(["bias", "", "bias", "", this.item.header.bias]);
    return rows;
  }

  json(): unknown {
    if (!this.filled || this.compared === undefined) return {};
    const { header } = this.item;
    const { matrix, a, b } = this.compared;
    const columns = b.labels.length;
    const text = (side: "a" | "b") => ({
      text: header[side].text,
      tokens: this.compared[side].labels,
      margin: Array.from(this.compared[side].margin),
      with_bias: Array.from(this.compared[side].withBias),
    });
    return {
      model: header.model, value: header.value, remainder: header.remainder, bias: header.bias, completeness: header.completeness,
      a: text("a"), b: text("b"),
      matrix: a.labels.map((_, i) => Array.from(matrix.subarray(i * columns, (i + 1) * columns))),
      provenance: header.provenance,
    };
  }

  protected packed(): Uint8Array {
    return packedCosines(this.items);
  }
}
