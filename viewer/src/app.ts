// The maps: a state, what it shows, and the controls that change it.

import { isolate, isolated } from "./bidi";
import type { Chrome, Page } from "./chrome";
import { scientific, type Ink } from "./colours";
import { CompareView } from "./compare";
import { makeControls } from "./controls";
import { h, pause, replace } from "./dom";
import { areTwo } from "./groups";
import type { Cell } from "./heatframe";
import { HeadsView } from "./headsview";
import { MapView } from "./mapview";
import { OverviewView } from "./overview";
import { PictureView } from "./pictureview";
import { BytesSource } from "./container";
import { packed, type Item } from "./payload";
import { RoutingRow } from "./routing";
import type { Row } from "./save";
import { feedForward, steps } from "./scopes";
import { around, TokenSearch } from "./search";
import { Shown } from "./shown";
import { stackIn, stackOf, targetWords, type Stack } from "./stacks";
import { comparison, counterpart, fit, likewise, read, write, type Ref, type Size, type State, type View } from "./state";
import { Strip } from "./strip";
import { itemName, textOf, type Context, type Panel } from "./view";

export class App implements Context, Page {
  readonly el = h("div", { class: "maps" });
  readonly extras: HTMLElement[];
  state!: State;
  items: Item[] = [];
  readonly guide =
    "A row is a token that the layer writes, a column a token that it reads, and a cell the length of what the one receives from the other. " +
    "A layer goes through the steps below: attention, what passes by it (residual), norm, feed-forward block; 1−ρ says how much a step changes the map. " +
    "Choose a token to see its row or column alone, or a cell to follow that pair through all layers.";
  private readonly second: HTMLElement;
  private readonly more = h("button", { type: "button", "data-action": "more", "aria-expanded": "true", onclick: () => this.showMore(this.second.hidden) }, "More controls");
  private readonly views: Record<View, Panel & { el: HTMLElement }>;
  private readonly picture: PictureView;
  private readonly routing: RoutingRow;
  private readonly strip: Strip;
  private readonly body = h("div", { class: "body" });
  private readonly text = h("span", { class: "quote" });
  private readonly missing = h("p", { class: "missing", role: "note" });
  private readonly layerRow = h("span", { class: "buttons" });
  private readonly controls;
  private readonly search = new TokenSearch((token) => this.goTo(token));
  private readonly kept = new Map<string, Shown>();
  private serial = 0;
  private drawn = 0;
  private current = 0;
  private cursor: Cell | null = null;
  askForHeads: (() => void) | null = null;

  constructor(private readonly chrome: Chrome) {
    this.picture = new PictureView(this);
    this.routing = new RoutingRow(this);
    this.views = {
      map: new MapView(this),
      heads: new HeadsView(this),
      picture: this.picture,
      compare: new CompareView(this),
      overview: new OverviewView(this),
    };
    this.strip = new Strip(this);
    this.controls = makeControls((patch) => this.update(patch), {
      stack: (stack) => this.chooseStack(stack),
      direction: (direction) => this.picture.turn(direction),
      amplification: () => this.amplification(),
    });
    this.extras = [this.controls.palette.el];
    this.second = this.toolbar();
    this.el.append(
      this.missing,
      this.navigation(),
      this.strip.el,
      this.routing.el,
      this.second,
      this.body,
    );
    this.more.hidden = chrome.around.kind !== "file";
  }

  get root(): HTMLElement {
    return this.chrome.root;
  }

  get filled(): boolean {
    return this.items.length > 0;
  }

  // Opening ------------------------------------------------------------------------------------

  open(items: Item[], words: Record<string, string>): void {
    this.items = items;
    this.kept.clear();
    this.state = read(words, this.headers);
    this.chrome.show(this);
    const aside = ["form", "scale", "diagonal", "head", "norm", "range", "sources", "special", "level", "names", "zoom", "pin"];
    this.showMore(this.more.hidden || aside.some((name) => name in words));
    this.update({});
  }

  /** One more analysis beside those at hand. */
  add(item: Item, words: Record<string, string> | null): void {
    if (this.items.length === 0) return this.open([item], words ?? {});
    this.items = [...this.items, item];
    const last = this.items.length - 1;
    if (words !== null) this.state = read(words, this.headers);
    else {
      const stack: Stack = "decoder";
      const state = { ...this.state, item: last, stack, pin: null, pair: null, zoom: null };
      this.state = fit(state, this.headers, this.sizeOf(state));
      [this.state.a, this.state.b] = comparison(this.state, this.headers);
    }
    this.update({});
  }

  /** The same maps with more in them, such as heads, in the place of those at hand. */
  put(at: number, item: Item): void {
    this.items = this.items.map((old, k) => (k === at ? item : old));
    this.kept.clear();
    this.update({});
  }

  /** Two analyses side by side, in the layer and scope that is looked at. */
  compare(first: number, second: number): void {
    const [a, b] = [first, second].map((item) => likewise(this.state, { item, stack: this.state.stack }, this.headers));
    this.update({ ...a, view: "compare", a, b });
  }

  say(text: string): void {
    this.chrome.say(text);
  }

  redraw(): void {
    void this.render();
  }

  // What views ask for -------------------------------------------------------------------------

  get ink(): Ink {
    return this.chrome.ink;
  }

  get caption(): string {
    return this.captionOf(this.state);
  }

  captionOf(ref: { item: number; stack: Stack }): string {
    const item = this.itemOf(ref);
    const text = textOf(item);
    const quoted = text === "" ? "" : `“${isolate(text.length > 70 ? `${text.slice(0, 69)}…` : text)}” · `;
    return `${quoted}${[...this.provenance(item), this.version(item)].join(" · ")}`;
  }

  update(patch: Partial<State>): void {
    const changed = { ...this.state, ...patch };
    if (patch.item !== undefined) changed.stack = stackIn(this.items[patch.item], changed.stack);
    if (patch.layer !== undefined || patch.item !== undefined) this.follow(changed, patch);
    const tokens = [patch.special, patch.level, patch.item, patch.stack, patch.sources];
    if (tokens.some((change) => change !== undefined)) changed.pin = changed.pair = changed.zoom = null;
    this.state = changed;
    this.state = fit(changed, this.headers, this.sizeOf(changed));
    this.chrome.around.changed(write(this.state, this.headers));
    void this.render();
  }

  itemOf({ item, stack }: { item: number; stack: Stack }): Item {
    return stackOf(this.items[item], stack);
  }

  shown({ item, stack }: { item: number; stack: Stack }): Shown {
    const { special, level, sources } = this.state;
    const key = `${item}/${stack}/${special}/${level}/${sources}`;
    let found = this.kept.get(key);
    if (found === undefined) {
      found = new Shown(this.itemOf({ item, stack }), special, level === "words", sources);
      if (this.kept.size > 4) this.kept.delete(this.kept.keys().next().value as string);
      this.kept.set(key, found);
    }
    return found;
  }

  private sizeOf(state: State): Size {
    // A state of another item may not fit yet; then its first stack counts.
    const stack = stackIn(this.items[state.item], state.stack);
    const { rows, columns } = this.shown({ item: state.item, stack });
    return { rows: rows.size, columns: columns.size };
  }

  room(): { width: number; height: number } {
    const { width } = this.chrome;
    // A map of many tokens may be taller than the window: its cells are what counts.
    const tokens = this.shown(this.state).rows.size;
    const cells = Math.min(900, Math.max(0, 4 * tokens - 60));
    const height = this.chrome.around.kind === "widget" ? 640 : Math.max(460, window.innerHeight - 230);
    return { width, height: Math.max(height, cells) };
  }

  stale(): boolean {
    return this.current !== this.serial;
  }

  tooltip(lines: string[] | null, event: PointerEvent | null): void {
    this.chrome.tooltip(lines, event);
  }

  // Drawing ------------------------------------------------------------------------------------

  private async render(): Promise<void> {
    const mine = ++this.serial;
    this.root.dataset.busy = "true";
    // One drawing at a time: the newest state is drawn when the one before has stopped.
    if (this.current !== 0) return;
    this.current = mine;
    try {
      this.renderControls();
      await this.routing.render();
      const view = this.views[this.state.view];
      if (view.el.parentNode !== this.body) replace(this.body, view.el);
      await view.render();
      if (!this.stale()) this.root.dataset.painted = String(mine);
      if (!this.stale()) await this.strip.render();
      this.chrome.clear();
    } catch (error) {
      this.chrome.fail(error);
    }
    const again = this.stale();
    this.current = 0;
    if (again) return this.render();
    this.drawn++;
    Object.assign(this.root.dataset, {
      busy: "false",
      drawn: this.drawn,
      items: this.items.length,
      view: this.state.view,
      stack: this.state.stack,
      layer: this.itemOf(this.state).header.layers[this.state.layer],
      scope: this.state.scope,
    });
    window.setTimeout(() => void this.prepare(mine), 150);
  }

  /** Decodes and ranks the neighbouring layers while nothing else is to do. */
  private async prepare(serial: number): Promise<void> {
    const { layer } = this.state;
    const shown = this.shown(this.state);
    for (const next of [layer + 1, layer - 1]) {
      if (next < 0 || next >= shown.layers.length) continue;
      for (const { before, after } of steps(shown.scopes)) {
        if (this.serial !== serial) return;
        await shown.rho(next, before, after);
        await pause();
      }
    }
  }

  private renderControls(): void {
    const { state, items, controls } = this;
    const item = this.itemOf(state);
    const { header } = item;
    const compare = state.view === "compare";
    controls.view.set(state.view);
    const picture = state.view === "picture";
    const option = (control: { el: HTMLElement }, value: string) =>
      control.el.querySelector<HTMLElement>(`[data-value="${value}"]`) as HTMLElement;
    option(controls.view, "picture").hidden = header.grid === null;
    controls.direction.set(state.direction);
    controls.direction.el.hidden = !picture;
    option(controls.range, "map").textContent = picture ? `this ${state.direction}` : "this map";
    controls.form.set(state.form);
    controls.scale.set(state.scale);
    controls.diagonal.set(state.diagonal ? "show" : "hide");
    const heads = state.view === "map" ? this.shown(state).heads(state.scope, state.layer) : 0;
    const numbered = Array.from({ length: heads }, (_, head): [string, string] => [String(head), String(head)]);
    controls.head.set(state.head === null ? "" : String(state.head), heads > 0 ? [["", "all together"], ...numbered] : []);
    controls.norm.set(state.norm);
    controls.range.set(state.range, state.scale !== "rank");
    const special = [...header.special, ...(header.sources?.special ?? [])];
    controls.special.set(state.special ? "show" : "hide", special.some(Boolean));
    controls.level.set(state.level, item.hasWords);
    controls.names.set(state.names);
    controls.level.el.hidden = header.grid !== null && !item.hasWords;
    controls.stack.set(state.stack);
    controls.stack.el.hidden = items[state.item].encoder === null;
    controls.sources.set(state.sources);
    controls.sources.el.hidden = !areTwo(header.sources?.sequences ?? []);
    controls.palette.set(state.palette, [
      ["viridis", "Viridis"], ["cividis", "Cividis"], ["magma", "Magma"], ["greys", "Greys"],
    ]);
    controls.item.set(String(state.item), items.map((each, k) => [String(k), itemName(each, k, items)]));
    controls.amplification.hidden = this.feedForward() === null;
    this.text.hidden = items.length > 1 || header.text === null;
    replace(this.text, isolated`“${textOf(item)}”`);
    controls.form.el.hidden = state.view !== "map";
    controls.norm.el.hidden = compare;
    controls.range.el.hidden = state.view === "overview" || compare;
    controls.zoom.hidden = state.zoom === null || !["map", "compare"].includes(state.view);
    const numbers = header.layers.map(String);
    if (this.layerRow.dataset.layers !== numbers.join()) {
      this.layerRow.dataset.layers = numbers.join();
      replace(
        this.layerRow,
        ...numbers.map((number, layer) =>
          h(
            "button",
            { type: "button", "data-layer": number, "aria-label": `Layer ${number}`, onclick: () => this.update({ layer }) },
            number,
          ),
        ),
      );
    }
    [...this.layerRow.children].forEach((button, k) =>
      button.setAttribute("aria-pressed", String(k === state.layer)),
    );
    this.search.set(this.shown(state).rows.labels, ["map", "compare"].includes(state.view));
    this.chrome.trust(this.provenance(item), this.version(item));
    this.missing.hidden = header.left_out.length === 0;
    this.missing.textContent = header.left_out.join(" ");
  }

  /** Completeness first: it says how far the maps can be trusted. */
  private provenance(item: Item): string[] {
    const { header } = item;
    const about = header.provenance;
    const words: string[] = [];
    const tolerance = typeof about.tolerance === "number" ? ` (tolerance ${scientific(about.tolerance)})` : "";
    words.push(
      header.completeness === null
        ? "completeness not measured"
        : `completeness error ${scientific(header.completeness)}${tolerance}`,
    );
    words.push(...targetWords(about));
    if (about.origin === "input") words.push("sources: input tokens");
    words.push(about.model_type ? `${header.model} (${String(about.model_type)})` : header.model);
    if (about.dtype) {
      const other = about.compute_dtype && about.compute_dtype !== about.dtype;
      words.push(other ? `${String(about.dtype)} (maps in ${String(about.compute_dtype)})` : String(about.dtype));
    }
    if (about.nonlinearity) words.push(`rule ${String(about.nonlinearity)}`);
    const error = header.precision.relative_error;
    words.push(
      header.precision.bits === 32
        ? "values in float32"
        : `values kept to ±${(100 * error).toPrecision(1)} % (${header.precision.bits} bits)`,
    );
    return words;
  }

  private version(item: Item): string {
    const versions = item.header.provenance.versions as Record<string, unknown> | undefined;
    return versions?.normlens ? `normlens ${String(versions.normlens)}` : "normlens";
  }

  // Controls -----------------------------------------------------------------------------------

  /** Before and after the feed-forward block, columns summing to 1. */
  private amplification(): void {
    const { item, stack, layer } = this.state;
    const step = this.feedForward();
    if (step === null) return;
    this.update({
      view: "compare",
      a: { item, stack, layer, scope: step.before },
      b: { item, stack, layer, scope: step.after },
      cnorm: "source",
    });
  }

  private feedForward() {
    const { scopes, provenance } = this.itemOf(this.state).header;
    return feedForward(scopes, String(provenance.components ?? ""));
  }

  private navigation(): HTMLElement {
    return h(
      "div",
      { class: "toolbar" },
      this.controls.view.el,
      this.controls.direction.el,
      this.controls.amplification,
      this.controls.stack.el,
      h(
        "div",
        { class: "control", role: "group", "aria-label": "Layer", "data-control": "layer" },
        h("span", { class: "label", "aria-hidden": "true" }, "Layer"),
        this.layerRow,
      ),
      this.controls.item.el,
      this.more,
      this.text,
    );
  }

  /** Shows or hides the second row of controls. */
  private showMore(shown: boolean): void {
    this.second.hidden = !shown;
    this.more.setAttribute("aria-expanded", String(shown));
  }

  /** The other controls. A page that travels alone opens without them, unless its state is about them. */
  private toolbar(): HTMLElement {
    const { form, head, scale, diagonal, norm, range, sources, special, level, names, zoom } = this.controls;
    return h(
      "div",
      { class: "toolbar" },
      form.el, head.el, scale.el, diagonal.el, range.el, norm.el, sources.el, special.el, level.el, names.el, this.search.el, zoom,
    );
  }

  /** Pins the row of a token; of a long text, the part around it is shown. */
  private goTo(token: number): void {
    const { rows, columns } = this.shown(this.state);
    const zoom = around(token, { rows: rows.size, columns: columns.size });
    this.update({ pin: { axis: "row", index: token }, pair: null, zoom });
    this.say(`${rows.labels[token]}, token ${token}`);
  }

  /** Turns to the other stack, to the layer and component most like the one looked at. */
  private chooseStack(stack: Stack): void {
    if (stack === this.state.stack) return;
    const here = counterpart(this.state, stack, this.headers);
    const [a, b] = comparison(here, this.headers);
    this.update({ ...here, a, b });
  }

  /** A comparison of two maps of the layer looked at moves with the layer. */
  private follow(changed: State, patch: Partial<State>): void {
    const { state } = this;
    const moved = (ref: Ref): Ref => {
      const item = patch.item !== undefined && ref.item === state.item ? patch.item : ref.item;
      const layer = ref.layer === state.layer && ref.stack === state.stack ? changed.layer : ref.layer;
      return { ...ref, item, stack: stackIn(this.items[item], ref.stack), layer };
    };
    if (patch.a === undefined) changed.a = moved(state.a);
    if (patch.b === undefined) changed.b = moved(state.b);
  }

  // Keyboard and surroundings ------------------------------------------------------------------

  key(event: KeyboardEvent, from: HTMLElement): boolean {
    const { state } = this;
    const arrows: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    };
    const arrow = arrows[event.key];
    const moves = event.shiftKey || this.picture.el.contains(from);
    if (arrow !== undefined && state.view === "picture" && moves) this.picture.move(arrow);
    else if (arrow !== undefined && event.shiftKey) this.moveCursor(arrow);
    else if (arrow !== undefined) this.go(arrow);
    else if (event.key === "Escape") {
      this.cursor = null;
      if (state.zoom !== null) this.update({ zoom: null });
      else this.update({ pin: null, pair: null });
    } else if (event.key === " " && from.tagName !== "BUTTON") this.strip.toggle();
    else if (this.cursor !== null && (event.key === "r" || event.key === "R")) {
      this.update({ pin: { axis: "row", index: this.cursor.target }, pair: null });
    } else if (this.cursor !== null && (event.key === "c" || event.key === "C")) {
      this.update({ pin: { axis: "column", index: this.cursor.source }, pair: null });
    } else return false;
    return true;
  }

  /** Down and up are layers, right and left components. */
  private go([down, right]: [number, number]): void {
    const { state } = this;
    const { layers } = this.itemOf(state).header;
    if (down !== 0) {
      const layer = state.layer + down;
      if (layer >= 0 && layer < layers.length) this.update({ layer });
    } else this.strip.step(right as 1 | -1);
  }

  private moveCursor([down, right]: [number, number]): void {
    const view = this.views[this.state.view];
    if (!(view instanceof MapView || view instanceof CompareView) || view.current === null) return;
    const { rows, columns } = view.current.window;
    const inside = (value: number, [from, to]: [number, number]) => Math.max(from, Math.min(to - 1, value));
    const old = this.cursor;
    this.cursor =
      old === null
        ? { target: rows[0], source: columns[0] }
        : { target: inside(old.target + down, rows), source: inside(old.source + right, columns) };
    view.cursor(this.cursor);
    this.say(view.describe(this.cursor));
  }

  // Saving -------------------------------------------------------------------------------------

  figure(): Promise<SVGElement> {
    return this.views[this.state.view].saved();
  }

  async table(): Promise<Row[]> {
    return this.views[this.state.view].table();
  }

  json(): unknown {
    return null;
  }

  payload(): string {
    const one = this.items.every((item) => item.source === this.items[0].source);
    return one ? this.items[0].source.base64() : new BytesSource(packed(this.items)).base64();
  }

  words(): Record<string, string> {
    return write(this.state, this.headers);
  }

  fileName(): string {
    const { state } = this;
    const { header } = this.itemOf(state);
    const layer = header.layers[state.layer];
    const map = `${state.scope}-layer-${layer}${state.head === null ? "" : `-head-${state.head}`}`;
    const what = { map, heads: `heads-layer-${layer}`, picture: `${map}-${this.picture.name}`, compare: "compare", overview: "overview" }[state.view];
    return `${header.model}-${header.stack === null ? "" : `${header.stack}-`}${what}`.replace(/[^\w.-]+/g, "_");
  }

  private get headers() {
    return this.items.map((item) => item.header);
  }
}
