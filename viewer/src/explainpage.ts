// The page of an explanation: coloured tokens, a token's way through the layers, and the components.

import { isolate, isolated } from "./bidi";
import { signed, type Colouring } from "./colours";
import type { Chrome } from "./chrome";
import { barLines, barsOf, drawComponents, headsOf, type ComponentPicture } from "./componentview";
import { buttons, h, list, replace, svg } from "./dom";
import type { Grid } from "./payload";
import { ExplanationItem, packedExplanations, type Explained } from "./explanation";
import { crossings, onTheWay, picked, type Drawn, type Edge } from "./flow";
import { drawFlow, shareSentences, type FlowPicture } from "./flowview";
import { FONT } from "./figure";
import { drawnPicture, type Drawn as DrawnPicture } from "./patches";
import { bars } from "./mapview";
import { choice, place, ResultPage } from "./resultpage";
import type { Row } from "./save";
import { composed } from "./saved";
import { beginnings, drawShares, layerName, shareLines } from "./sequences";
import { coloursOf, drawStrip, legend, TokenStrip, type Rest, type Tokens } from "./tokenstrip";
import { facts, questionOf, sumOf } from "./verdict";

const VIEWS = ["flow", "components", "shares", "picture"] as const;
const LEVELS = ["subwords", "words"] as const;
const READINGS = ["embeddings", "layers"] as const;
const SHARES = ["80", "50", "95"] as const;
const MOST = 1200; // edges that can still be told apart
const LISTED = 12;
const TALLEST = 560; // pixels of a picture
const COVER = 0.62; // how much of a patch's colour covers it

export interface ExplainState {
  item: number;
  view: (typeof VIEWS)[number];
  level: (typeof LEVELS)[number];
  reading: (typeof READINGS)[number];
  share: (typeof SHARES)[number];
  heads: boolean;
  token: number | null;
}

export class ExplainPage extends ResultPage<ExplanationItem, ExplainState> {
  readonly kind = "explain";
  readonly guide =
    "Each number says how much a token adds to the score, or takes from it; with what no token owns they sum to the score. " +
    "The picture follows the score through the layers, from the tokens on the left to where it is read on the right; choose a token to see its way. " +
    "All of it is exact for the network with this input’s attention weights, deviations of norms and slopes of activations held fixed.";
  private readonly question = h("h2", { class: "question" });
  private readonly facts = h("dl", { class: "facts" });
  private readonly sum = h("p", { class: "sum" });
  private readonly strip = new TokenStrip(
    (token) => this.update({ token }),
    (lines, event) => this.chrome.tooltip(lines, event),
  );
  private readonly key_ = h("div", { class: "key" });
  private readonly note = h("p", { class: "note" });
  private readonly stage = h("div", { class: "stage" });
  private readonly aside = h("aside", { class: "aside", "aria-label": "Details" });
  private readonly controls;
  private explained!: Explained;
  private picture: DrawnPicture | null = null;
  private drawnFor: { of: Float32Array[]; share: string; drawn: Drawn } | null = null;

  constructor(chrome: Chrome) {
    super(chrome);
    this.controls = this.makeControls();
    const { item, view, level, reading, share, heads } = this.controls;
    this.el.append(
      this.missing,
      h("div", { class: "toolbar" }, item.el),
      h("section", { class: "verdict", "aria-label": "What is explained" }, this.question, this.facts),
      this.strip.el,
      this.sum,
      this.key_,
      this.choices(view.el, level.el, reading.el, share.el, heads.el),
      this.note,
      h("div", { class: "mapview" }, this.stage, this.aside),
    );
  }

  // The state ----------------------------------------------------------------------------------

  protected read(words: Record<string, string>): ExplainState {
    const item = place(words.item, this.items.length) ?? 0;
    const { header } = this.items[item];
    const level = header.words === null ? "subwords" : choice(words.level, LEVELS);
    const isPicture = (header.grid ?? null) !== null && level === "subwords";
    const wanted = words.view === undefined && isPicture ? "picture" : choice(words.view, VIEWS);
    const view = wanted === "picture" && !isPicture ? VIEWS[0] : wanted;
    return {
      item,
      view: view === "shares" && !this.hasShares ? VIEWS[0] : view,
      level,
      reading: choice(words.reading, READINGS),
      share: choice(words.share, SHARES),
      heads: words.heads === "1",
      token: place(words.token, header.tokens.length),
    };
  }

  protected write(state: ExplainState): Record<string, string> {
    const words: Record<string, string> = {};
    if (state.item > 0) words.item = String(state.item);
    const usual = (this.items[state.item].header.grid ?? null) !== null && state.level === LEVELS[0] ? "picture" : VIEWS[0];
    if (state.view !== usual) words.view = state.view;
    if (state.level !== LEVELS[0]) words.level = state.level;
    if (state.reading !== READINGS[0]) words.reading = state.reading;
    if (state.share !== SHARES[0]) words.share = state.share;
    if (state.heads) words.heads = "1";
    if (state.token !== null) words.token = String(state.token);
    return words;
  }

  key(event: KeyboardEvent, from: HTMLElement): boolean {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const n = this.explained?.labels.length ?? 0;
    const { token } = this.state;
    if (step !== undefined && n > 0) {
      const next = token === null ? (step > 0 ? 0 : n - 1) : Math.max(0, Math.min(n - 1, token + step));
      this.update({ token: next });
      const values = this.contributions();
      this.chrome.say(`${this.explained.labels[next]}, contributes ${signed(values[next])}`);
      if (from.dataset.token !== undefined) this.strip.focus(next);
      return true;
    }
    if (event.key === "Escape" && token !== null) {
      this.update({ token: null });
      return true;
    }
    return false;
  }

  // Drawing ------------------------------------------------------------------------------------

  protected async draw(stale: () => boolean): Promise<void> {
    const { header } = this.item;
    const explained = await this.item.at(this.state.level);
    this.picture = (header.grid ?? null) === null ? null : await drawnPicture(this.item);
    if (stale()) return;
    this.explained = explained;
    if (this.state.token !== null && this.state.token >= explained.labels.length) this.state.token = null;
    this.drawControls();
    this.question.textContent = questionOf(header);
    replace(this.facts, ...facts(header).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const { colours, tokens, rest } = this.row(this.chrome.ink.dark);
    this.strip.draw(tokens, colours, 0, rest, tokens.labels.length);
    this.sum.textContent = this.sumWords();
    replace(this.key_, legend(colours, this.chrome.ink, this.chrome.width));
    if (this.state.view === "flow") this.drawFlow();
    else if (this.state.view === "components") this.drawComponents();
    else if (this.state.view === "picture") this.drawPatches();
    else this.drawShares();
    this.chrome.root.dataset.view = this.state.view;
    this.chrome.root.dataset.token = String(this.state.token ?? "");
  }

  private drawControls(): void {
    const { state, controls, items } = this;
    const { header } = this.item;
    controls.item.set(String(state.item), items.map((item, k) => [String(k), `${k + 1}: ${questionOf(item.header)}`]));
    controls.view.set(state.view);
    const shares = controls.view.el.querySelector<HTMLElement>('[data-value="shares"]');
    if (shares !== null) shares.hidden = !this.hasShares;
    const picture = controls.view.el.querySelector<HTMLElement>('[data-value="picture"]');
    if (picture !== null) picture.hidden = (header.grid ?? null) === null || state.level === "words";
    controls.level.set(state.level, header.words !== null);
    controls.reading.set(state.reading);
    controls.share.set(state.share);
    controls.heads.set(state.heads ? "1" : "0");
    controls.share.el.hidden = state.view !== "flow" || header.flow === null;
    controls.heads.el.hidden = state.view !== "components";
  }

  /** The tokens that the picture shows. */
  private get patches(): [number, number] | undefined {
    const { grid } = this.item.header;
    if (!grid || this.state.view !== "picture") return undefined;
    return [grid.first, grid.first + grid.rows * grid.columns];
  }

  /** What each token contributes, at the embeddings or on average over the inputs of all layers. */
  private contributions(): Float32Array {
    const { nodes, labels, layers } = this.explained;
    const n = labels.length;
    if (this.state.reading === "embeddings") return nodes.subarray(0, n);
    return Float32Array.from(labels, (_, k) => {
      let sum = 0;
      for (let layer = 0; layer < layers; layer++) sum += nodes[layer * n + k];
      return sum / layers;
    });
  }

  /** What no token owns of it; over layers, biases count where they are yet to come. */
  private get remainder(): number {
    const { header } = this.item;
    if (this.state.reading === "embeddings") return header.remainder;
    const share = (layer: number | "head") => (layer === "head" ? 1 : (layer + 1) / header.layers);
    return header.biases.reduce((sum, [layer, , value]) => sum + share(layer) * value, 0);
  }

  private sumWords(): string {
    return sumOf(this.item.header, this.contributions(), this.remainder, this.explained.sequences?.source_tokens);
  }

  /** The tokens with what they contribute, and what none of them owns. */
  private row(dark: boolean): { tokens: Tokens; rest: Rest[]; colours: Colouring } {
    const { explained } = this;
    const values = this.contributions();
    const rest = [{ label: "no token", value: this.remainder, title: "The remainder: what the model’s biases add, which no token owns." }];
    return {
      tokens: { name: "Tokens and what they contribute", labels: explained.labels, special: explained.special, values, chosen: this.state.token, beginnings: beginnings(explained), patches: this.patches },
      rest,
      colours: coloursOf([values], rest, "contribution to the score: warm colours raise it, blue ones lower it", dark),
    };
  }

  private flowPicture(flow: Float32Array[]): FlowPicture {
    const { explained, state } = this;
    const { header } = this.item;
    if (this.drawnFor?.of !== flow || this.drawnFor.share !== state.share) {
      const n = explained.labels.length;
      const drawn = picked(flow, n, Number(state.share) / 100, Math.min(MOST, Math.max(80, 3 * n)));
      this.drawnFor = { of: flow, share: state.share, drawn };
    }
    const { drawn } = this.drawnFor;
    const marks = state.token === null ? null : onTheWay(drawn.edges, state.token, explained.layers);
    return { explained, drawn, marks, token: state.token, biases: header.biases, reads: header.target ?? "score" };
  }

  private drawFlow(): void {
    const { flow, labels } = this.explained;
    if (flow === null) {
      this.note.textContent = "There are no flow maps here, so the way through the layers cannot be drawn; Components shows each layer’s part.";
      replace(this.stage);
      replace(this.aside);
      return;
    }
    const picture = this.flowPicture(flow);
    const figure = svg("svg", { class: "flow", role: "img", "data-figure": "flow", "font-family": FONT });
    const size = drawFlow(figure, picture, this.room(), this.chrome.ink);
    figure.setAttribute(
      "aria-label",
      `Flow of the score through ${this.explained.layers} layers and ${labels.length} tokens, layers from left to right. ` +
        `${shareSentences(picture).join(" ")} The list beside it names the strongest edges.`,
    );
    this.place(figure, size);
    this.stage.dataset.edges = String(picture.drawn.edges.length);
    this.note.textContent =
      `Warm colours raise the score, blue ones lower it; edges are as wide as what they carry, dots as large as what a vector carries. ${shareSentences(picture).join(" ")} ` +
      (picture.marks === null ? "Choose a token to see its way." : `Strong: ways that begin at ${labels[this.state.token as number]}.`);
    this.listFlow(flow);
  }

  /** What each patch contributes, laid over the picture that the model saw. */
  private overlay(into: SVGElement, room: number, dark: boolean): { width: number; height: number } {
    const { rows, columns, first } = this.item.header.grid as Grid;
    const { colours, tokens } = this.row(dark);
    const ratio = this.picture === null ? columns / rows : this.picture.width / this.picture.height;
    const height = Math.min(TALLEST, room / ratio);
    const width = height * ratio;
    if (this.picture !== null) into.append(svg("image", { width, height, href: this.picture.grey, preserveAspectRatio: "none" }));
    const [wide, high] = [width / columns, height / rows];
    for (let k = 0; k < rows * columns; k++) {
      const [x, y] = [(k % columns) * wide, Math.floor(k / columns) * high];
      const value = tokens.values[first + k];
      const chosen = first + k === this.state.token;
      into.append(
        svg("rect", {
          x, y, width: wide, height: high, class: "patch pick", fill: colours.colour(colours.at(first + k)),
          "fill-opacity": this.picture === null ? 1 : COVER, "data-token": first + k, "data-value": value,
          stroke: chosen ? (dark ? "#ffffff" : "#000000") : null, "stroke-width": chosen ? 2 : null,
        }),
      );
    }
    return { width, height };
  }

  private drawPatches(): void {
    const { rows, columns, first } = this.item.header.grid as Grid;
    const figure = svg("svg", { class: "overlay", role: "img", "data-figure": "picture", "font-family": FONT });
    const size = this.overlay(figure, Math.min(this.room(), 640), this.chrome.ink.dark);
    figure.setAttribute("aria-label", `What each of ${rows} by ${columns} patches contributes to the score. The list beside it names the largest.`);
    this.place(figure, size);
    this.note.textContent = "Warm patches raise the score, blue ones lower it; patches are called by row and column, from 1. Choose one to see its way in the flow.";
    const { labels, values } = this.row(false).tokens;
    const largest = labels.map((label, token) => ({ label, token, value: values[token] })).filter(({ token }) => token >= first && token < first + rows * columns);
    largest.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    replace(
      this.aside,
      h("h3", {}, "Largest contributions"),
      bars(largest.slice(0, LISTED).map(({ label, token, value }) => ({ label, value, go: () => this.update({ token }) })), signed),
      this.picture && h("h4", {}, "The picture that the model saw"),
      this.picture && h("img", { class: "seen", src: this.picture.plain, alt: "The picture, after resizing and cropping", width: 160 }),
    );
  }

  private drawComponents(): void {
    const picture = this.componentPicture();
    const figure = svg("svg", { class: "components", role: "img", "data-figure": "components", "font-family": FONT });
    const size = drawComponents(figure, picture, this.room(), this.chrome.ink);
    figure.setAttribute("aria-label", `Bars by layer: ${barsOf(picture).map(({ name }) => name).join(", ")}. The list beside them names the largest.`);
    this.place(figure, size);
    const alone = this.state.token === null ? "" : ` Strong bars: at the position of ${this.explained.labels[this.state.token]} alone; pale ones: everywhere.`;
    this.note.textContent =
      "How much of the score passes each block of a layer first; the rest of it passes none of them, by the residual connections. Each layer is passed anew, so bars of different layers do not add up; biases do, to the remainder." + alone;
    this.listComponents(picture);
  }

  /** Whether several explanations are of tokens of an encoder–decoder's target. */
  private get hasShares(): boolean {
    return this.items.length > 1 && this.items.every(({ header }) => header.sequences !== null);
  }

  private drawShares(): void {
    const headers = this.items.map(({ header }) => header);
    const figure = svg("svg", { class: "shares", role: "img", "data-figure": "shares", "font-family": FONT });
    const size = drawShares(figure, headers, this.state.item, this.room(), this.chrome.ink);
    figure.setAttribute("aria-label", `For each of ${headers.length} tokens of the target, what the source and the prefix supply of its score. The list beside it names the shares.`);
    this.place(figure, size);
    figure.addEventListener("click", (event) => {
      const { item } = (event.target as SVGElement).dataset;
      if (item !== undefined) this.update({ item: Number(item), token: null });
    });
    this.note.textContent =
      "What the source’s tokens and the target’s tokens before the generated one supply of its score: |Σ source| / (|Σ source| + |Σ prefix|). " +
      "The upright mark is the same of the sums of absolute contributions. Choose a row to see that token’s explanation.";
    replace(
      this.aside,
      h("h3", {}, "Share of the source"),
      bars(
        headers.map((header, item) => ({
          label: header.target ?? "score",
          value: header.sequences?.shares.source_share ?? 0,
          go: () => this.update({ item, token: null }),
        })),
        (share) => `${(100 * share).toFixed(0)} %`,
      ),
    );
  }

  private componentPicture(): ComponentPicture {
    const { header } = this.item;
    return {
      explained: this.explained,
      names: header.component_names,
      biases: header.biases,
      token: this.state.token,
      heads: this.state.heads ? header.heads_per_layer : null,
    };
  }

  private place(figure: SVGElement, { width, height }: { width: number; height: number }): void {
    figure.setAttribute("viewBox", `0 0 ${width} ${height}`);
    figure.setAttribute("width", String(width));
    figure.setAttribute("height", String(height));
    figure.addEventListener("pointermove", (event) => this.point(event as PointerEvent));
    figure.addEventListener("pointerleave", () => this.chrome.tooltip(null, null));
    figure.addEventListener("click", (event) => {
      const picked = (event.target as SVGElement).dataset.token;
      if (picked !== undefined) this.update({ token: Number(picked) === this.state.token ? null : Number(picked) });
    });
    replace(this.stage, figure);
  }

  private point(event: PointerEvent): void {
    this.chrome.tooltip(this.lines(event.target as SVGElement), event);
  }

  /** What an edge, a node or a bar says when it is pointed at. */
  private lines(mark: SVGElement): string[] | null {
    const { labels, nodes } = this.explained;
    const { edge, node, bias, item, token } = mark.dataset;
    if (token !== undefined && this.state.view === "picture") {
      return [`patch ${labels[Number(token)]}`, signed(this.contributions()[Number(token)])];
    }
    if (item !== undefined) return shareLines(this.items[Number(item)].header);
    if (edge !== undefined) {
      const { layer, source, target, value } = this.drawnFor?.drawn.edges[Number(edge)] as Edge;
      return [`layer ${layerName(this.explained, layer)}`, `${isolate(labels[source])} (${source}) → ${isolate(labels[target])} (${target})`, signed(value)];
    }
    if (node !== undefined) {
      const [layer, token] = [Math.floor(Number(node) / labels.length), Number(node) % labels.length];
      return [`${labels[token]} (${token}), entering layer ${layerName(this.explained, layer)}`, signed(nodes[Number(node)])];
    }
    if (bias !== undefined) return this.biasLines(Number(bias));
    return barLines(mark, this.item.header.biases, this.explained);
  }

  private biasLines(at: number): string[] {
    const layer = at === this.explained.layers ? "head" : Math.floor(at);
    const own = this.item.header.biases.filter(([of, , value]) => of === layer && value !== 0);
    return [
      layer === "head" ? "biases behind the last layer" : `biases of layer ${layerName(this.explained, layer)}`,
      ...own.map(([, component, value]) => `${component} ${signed(value)}`),
      signed(own.reduce((sum, [, , value]) => sum + value, 0)),
    ];
  }

  private room(): number {
    const { width } = this.chrome;
    return width > 860 ? width - 300 : width;
  }

  // Details ------------------------------------------------------------------------------------

  private listFlow(flow: Float32Array[]): void {
    const { labels, nodes } = this.explained;
    const { token } = this.state;
    const n = labels.length;
    const name = (layer: number) => layerName(this.explained, layer);
    const entries = (edges: Edge[], name: (edge: Edge) => HTMLElement) =>
      bars(edges.map((edge) => ({ label: name(edge), value: edge.value, go: () => this.update({ token: edge.source }) })), signed);
    if (token === null) {
      const edges = crossings(flow, n, LISTED);
      replace(
        this.aside,
        h("h3", {}, "Strongest steps"),
        h("p", { class: "note" }, "from one token to another, in one layer"),
        entries(edges, ({ layer, source, target }) => isolated`${name(layer)}: ${labels[source]} → ${labels[target]}`),
      );
      return;
    }
    const leaving = crossings(flow, n, LISTED, (_, source) => source === token);
    const arriving = crossings(flow, n, LISTED / 2, (target) => target === token);
    replace(
      this.aside,
      h("h3", {}, labels[token]),
      h("p", { class: "note pair-value" }, `contributes ${signed(nodes[token])}`),
      h("h4", {}, "From its position to others"),
      h("p", { class: "note" }, "layer: target, exactly; the rest stays"),
      entries(leaving, ({ layer, target }) => isolated`${name(layer)}: → ${labels[target]}`),
      h("h4", {}, "From others to its position"),
      entries(arriving, ({ layer, source }) => isolated`${name(layer)}: ${labels[source]} →`),
      h("button", { type: "button", onclick: () => this.update({ token: null }) }, "Clear (Esc)"),
    );
  }

  private listComponents(picture: ComponentPicture): void {
    const parts = barsOf(picture).flatMap(({ name, values, alone }) =>
      (alone ?? values).map((value, layer) => ({
        label: layer === this.explained.layers ? `${name}, end` : `${name}, layer ${layerName(this.explained, layer)}`,
        value,
        go: () => this.update({ view: "components" }),
      })),
    );
    const largest = parts.filter(({ value }) => value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    replace(this.aside, h("h3", {}, "Largest parts"), bars(largest.slice(0, LISTED), signed));
  }

  private makeControls() {
    return {
      item: list("Explanation", (value) => this.update({ item: Number(value), token: null }), "item"),
      view: buttons<ExplainState["view"]>(
        "View",
        [
          { value: "flow", label: "Flow", title: "Through the layers, from token to token" },
          { value: "components", label: "Components", title: "What passes through attention, feed-forward blocks and heads" },
          { value: "picture", label: "Picture", title: "What each patch contributes, over the picture" },
          { value: "shares", label: "Shares", title: "What source and prefix supply of each token of the target" },
        ],
        (view) => this.update({ view }),
        "view",
      ),
      level: buttons<ExplainState["level"]>(
        "Level",
        [
          { value: "subwords", label: "subwords" },
          { value: "words", label: "words", title: "A word’s tokens are summed" },
        ],
        (level) => this.update({ level, token: null }),
        "level",
      ),
      reading: buttons<ExplainState["reading"]>(
        "Read",
        [
          { value: "embeddings", label: "at the embeddings", title: "What each input token contributes: with the biases, exactly the score" },
          { value: "layers", label: "over all layers", title: "The mean over the inputs of all layers: which position carries the score, fair to a first token that layers only pass it through" },
        ],
        (reading) => this.update({ reading }),
        "reading",
      ),
      share: buttons<ExplainState["share"]>(
        "Drawn",
        [
          { value: "50", label: "50 %", title: "The strongest edges that carry half of all that flows" },
          { value: "80", label: "80 %" },
          { value: "95", label: "95 %" },
        ],
        (share) => this.update({ share }),
        "share",
      ),
      heads: buttons<"0" | "1">(
        "Heads",
        [
          { value: "0", label: "together" },
          { value: "1", label: "each" },
        ],
        (value) => this.update({ heads: value === "1" }),
        "heads",
      ),
    };
  }

  // Saving -------------------------------------------------------------------------------------

  fileName(): string {
    const { model, target } = this.item.header;
    return `${model}-why-${target ?? "direction"}-${this.state.view}`.replace(/[^\w.-]+/g, "_");
  }

  async figure(): Promise<SVGElement> {
    const { header } = this.item;
    const { tokens, rest, colours } = this.row(false);
    return composed({
      title: questionOf(header),
      lines: [facts(header).map(([name, value]) => `${name} ${value}`).join(" · "), this.sumWords()],
      caption: [...this.provenance(header), this.version].join(" · "),
      colours,
      strip: (into, at, ink) => drawStrip(into, tokens, colours, 0, rest, tokens.labels.length, at, ink),
      picture: (into, room, ink) => {
        const { flow } = this.explained;
        if (this.state.view === "components") return drawComponents(into, this.componentPicture(), room, ink);
        if (this.state.view === "picture") return this.overlay(into, 640, false);
        if (this.state.view === "shares") return drawShares(into, this.items.map((item) => item.header), this.state.item, room, ink);
        return flow === null ? { width: 0, height: 0 } : drawFlow(into, this.flowPicture(flow), room, ink);
      },
      note: this.note.textContent ?? "",
    });
  }

  async table(): Promise<Row[]> {
    const { explained, state } = this;
    const { labels, flow } = explained;
    const n = labels.length;
    if (state.view === "shares") {
      const rows: Row[] = [["token", "score", "source", "prefix", "bias", "source_share", "source_share_absolute"]];
      for (const { header: one } of this.items) {
        if (one.sequences === null) continue;
        const { source, prefix, bias, source_share, source_share_absolute } = one.sequences.shares;
        rows.push([one.target ?? "", one.value, source, prefix, bias, source_share ?? "", source_share_absolute ?? ""]);
      }
      return rows;
    }
    if (state.view === "components") {
      const rows: Row[] = [["component", "layer", "value"]];
      const picture = this.componentPicture();
      for (const { name, values, alone } of barsOf(picture)) {
        (alone ?? values).forEach((value, layer) => rows.push([name, layer === explained.layers ? "head" : layer, value]));
      }
      if (picture.heads !== null) {
        const heads = picture.heads;
        const list = (name: string, values: Float32Array, each: number) =>
          values.forEach((value, k) => {
            if (!Number.isNaN(value)) rows.push([`${name} ${k % each}`, Math.floor(k / each), value]);
          });
        list("head", headsOf(picture), heads);
        const { cross, layers } = explained;
        if (cross !== null) list("CROSS head", headsOf(picture, cross), cross.length / n / layers);
      }
      return rows;
    }
    const rows: Row[] = [["layer", "target", "target_token", "source", "source_token", "value"]];
    this.contributions().forEach((value, k) => rows.push(["contribution", "", "", k, labels[k], value]));
    rows.push(["remainder", "", "", "", "", this.remainder]);
    flow?.forEach((map, layer) =>
      map.forEach((value, k) => {
        const [target, source] = [Math.floor(k / n), k % n];
        if (value !== 0) rows.push([layer, target, labels[target], source, labels[source], value]);
      }),
    );
    return rows;
  }

  json(): unknown {
    if (!this.filled || this.explained === undefined) return {};
    const { header } = this.item;
    const { labels, layers } = this.explained;
    const { task, question, value, target, target_value, probability, contrast, contrast_value, contrast_probability } = header;
    return {
      model: header.model, text: header.text, task, question, value, reading: this.state.reading, remainder: this.remainder,
      target, target_value, probability, contrast, contrast_value, contrast_probability,
      position: header.position, layer: header.layer, completeness: header.completeness, layers, sequences: header.sequences,
      tokens: Array.from(this.contributions(), (contribution, k) => ({ position: k, token: labels[k], contribution })),
      biases: header.biases.map(([layer, component, share]) => ({ layer, component, value: share })),
      components: barsOf({ ...this.componentPicture(), token: null }).slice(0, -1).map(({ name, values }) => ({ component: name, by_layer: values })),
      provenance: header.provenance,
    };
  }

  protected packed(): Uint8Array {
    return packedExplanations(this.items);
  }
}
