// The form above the pages on the local server; see CONTRACT.md for its requests.

import type { App } from "./app";
import type { Chrome, Page } from "./chrome";
import { Client, type Model, type Status } from "./client";
import { BytesSource } from "./container";
import { openCosines } from "./cosine";
import type { CosinePage } from "./cosinepage";
import { buttons, h, list, replace } from "./dom";
import type { ExplainPage } from "./explainpage";
import { openExplanations } from "./explanation";
import { History } from "./history";
import { open, type Item } from "./payload";
import { askOf, holds, problemOf, RULES, sameQuestion, wordsOf, type Ask, type Mode } from "./requests";
import { targetWords } from "./stacks";

export interface Pages {
  maps: App;
  explain: ExplainPage;
  cosine: CosinePage;
}

const MOST = 8; // analyses of a kind that the page keeps
const ACTIONS: Record<Mode, string> = { maps: "Analyse", explain: "Explain", cosine: "Compare" };
const HINTS: Record<Mode, string> = {
  maps: "Type a text and press Enter.",
  explain: "Type a text and press Enter; leave the target empty to explain what the model says.",
  cosine: "Type two texts and press Enter.",
};
const PAIR_HINTS: Record<Mode, string> = {
  maps: "Type a text and press Enter; leave the target text empty and the model generates it.",
  explain: "Type a text and press Enter; leave the target text empty and the model generates it. Its last token is explained, or the one you name.",
  cosine: "",
};

const EXAMPLE =
  "An example: how one layer of the model mixes the tokens of this sentence. Row i shows what goes into the output of token i, " +
  "column by column from each token j; the brighter a cell, the more. Step through the components of the layer (attention " +
  "comes first) to see what each one changes, click a token or a cell, or type a text of your own.";

/** A field of the form: in which modes, and for models of how many stacks, it is shown. */
interface Field {
  modes: Mode[];
  stacks: number[];
  el: HTMLElement;
}

const TO_SAY =
  "A word, as a token of the model: a space before it (or ␣) matters. Or a label. #12 is the one of that number.";
const OF_TARGET_TEXT = "The token of the target text that is explained: a word of it, or its place, #0 for the first.";

export class ServePanel {
  private readonly model;
  private readonly rule;
  private readonly mode_;
  private readonly first = h("span", { class: "label" });
  private readonly text = h("textarea", { rows: 2, dir: "auto", "data-field": "text", spellcheck: "false" });
  private readonly second = h("textarea", { rows: 2, dir: "auto", "data-field": "second", spellcheck: "false" });
  private readonly targetText = h("textarea", {
    rows: 2, dir: "auto", "data-field": "target-text", spellcheck: "false", placeholder: "empty: the model generates it",
  });
  private readonly pair = h("input", { type: "text", dir: "auto", "data-field": "pair" });
  private readonly targetLabel = h("span", { class: "label" });
  private readonly target = h("input", {
    type: "text", "data-field": "target", size: 12, maxlength: 100,
  });
  private readonly contrast = h("input", { type: "text", "data-field": "contrast", size: 12, maxlength: 100, placeholder: "none", title: "Why the target and not this?" });
  private readonly position = h("input", {
    type: "text", "data-field": "position", size: 5, inputmode: "numeric", placeholder: "usual",
    title: "Where the score is read, from 0; −1 is the last token. Usually the last token, or the mask.",
  });
  private readonly count = h("span", { class: "note" });
  private readonly headless = h("p", { class: "note", role: "note", "data-role": "headless", hidden: true });
  private readonly start = h("button", { type: "submit", class: "primary", "data-action": "analyse" }, "Analyse");
  private readonly stop = h("button", { type: "button", hidden: true, "data-action": "cancel", onclick: () => void this.cancel() }, "Cancel");
  private readonly meter = h("progress", { hidden: true, max: 1, "aria-label": "Progress" });
  private readonly message = h("span", { class: "message", role: "status", "aria-live": "polite", "data-role": "message" });
  private readonly heads = h("input", { type: "checkbox", "data-field": "heads" });
  private readonly otherModel = list("Model B", (other) => this.set({ other }), "other-model");
  private readonly beside = h("button", {
    type: "button", "data-action": "beside", "aria-pressed": "false",
    title: "Analyse two texts, or one text with two models, and show their maps side by side",
    onclick: () => this.set({ beside: !this.chosen.beside }),
  }, "Compare with …");
  /** On a narrow page the form's choices wait behind it. */
  private readonly options = h("button", {
    type: "button", class: "options", "data-action": "options", "aria-expanded": "false",
    onclick: () => {
      const open = this.options.getAttribute("aria-expanded") !== "true";
      this.options.setAttribute("aria-expanded", String(open));
    },
  }, "Options");
  private readonly about = h("p", { class: "about", role: "note", "data-role": "example", hidden: true }, EXAMPLE);
  private readonly history = new History((ask) => void this.recall(ask));
  private readonly fields: Field[];
  private example: Ask | null = null;
  private models: Model[] = [];
  private limit = Infinity;
  private readonly client = new Client();
  private working = false;
  private chosen = { mode: "maps" as Mode, model: "", rule: "ig", beside: false, other: "" };
  private readonly done: Record<Mode, Ask[]> = { maps: [], explain: [], cosine: [] };

  constructor(
    private readonly chrome: Chrome,
    private readonly pages: Pages,
    private readonly changed: () => void,
  ) {
    this.mode_ = buttons<Mode>(
      "Show",
      [
        { value: "maps", label: "Maps", title: "How each component of a layer mixes its tokens" },
        { value: "explain", label: "Explain", title: "Which tokens made the model say this, and by which way" },
        { value: "cosine", label: "Cosine", title: "Which tokens made the cosine of two texts" },
      ],
      (mode) => this.choose(mode),
      "mode",
    );
    this.model = list("Model", (model) => this.set({ model }), "model");
    this.rule = list("Rule", (rule) => this.set({ rule }), "rule");
    this.fields = this.makeFields();
    for (const area of [this.text, this.second, this.targetText]) {
      area.addEventListener("input", () => this.showCount());
      area.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.shiftKey) return;
        event.preventDefault();
        void this.analyse();
      });
    }
    pages.maps.askForHeads = () => void this.computeHeads();
    chrome.above.append(this.form(), this.history.el, this.about);
  }

  get mode(): Mode {
    return this.chosen.mode;
  }

  get page(): Page {
    return this.pages[this.chosen.mode];
  }

  private makeFields(): Field[] {
    const field = (modes: Mode[], stacks: number[], label: string | HTMLElement, input: HTMLElement, kind = "control") => ({
      modes,
      stacks,
      el: h("label", { class: kind }, typeof label === "string" ? h("span", { class: "label" }, label) : label, input),
    });
    return [
      field(["cosine", "maps"], [1, 2], "Text B", this.second, "text"),
      field(["maps", "explain"], [2], "Target text", this.targetText, "text"),
      field(["explain"], [1, 2], this.targetLabel, this.target),
      field(["explain"], [1, 2], "and not", this.contrast),
      field(["explain"], [1], "Position", this.position),
      field(["maps", "explain"], [1], "Second text", this.pair),
      field(["maps"], [1, 2], "Heads", this.heads),
    ];
  }

  private form(): HTMLElement {
    const [second, targetText, ...rest] = this.fields;
    const submit = (event: Event) => {
      event.preventDefault();
      void this.analyse();
    };
    return h(
      "form",
      { class: "ask", onsubmit: submit },
      h("div", { class: "toolbar first" }, this.mode_.el, h("button", { type: "button", "data-action": "cite", title: "Which sources made an answer: documents, question, answer", onclick: () => location.assign("cite") }, "Cite …"), this.model.el, this.rule.el),
      h("label", { class: "text" }, this.first, this.text),
      second.el,
      targetText.el,
      h("div", { class: "toolbar" }, ...rest.map(({ el }) => el), this.beside, this.otherModel.el, this.start, this.options, this.stop, this.meter, this.message, this.count),
      this.headless,
    );
  }

  /** Asks for the models, then analyses what the address names. */
  async open(words: Record<string, string>): Promise<void> {
    try {
      const { models, limits, example } = await this.client.offer();
      this.models = models;
      this.example = example === null ? null : askOf({ ...example });
      this.limit = limits?.text_characters ?? Infinity;
    } catch (error) {
      this.say(`The server does not answer: ${message(error)}`);
      return;
    }
    const known = (name: string | undefined) => this.models.find((model) => model.name === name)?.name;
    const first = askOf(words);
    const typed = this.text.value; // while the server was asked
    this.fill({ ...first, text: first.text || typed, model: known(first.model) ?? this.models[0]?.name ?? "" });
    if (!first.text) return this.begin(first);
    if (first.model && !known(first.model)) {
      this.say(`The server does not offer the model ${first.model}.`);
      return;
    }
    const wrong = problemOf(this.ask());
    if (wrong !== null) return this.say(wrong);
    const again = words.text2 ? askOf(words, "2") : null;
    const second = again === null ? null : { ...again, model: known(again.model) ?? this.chosen.model };
    if (await this.run(this.ask(), second === null ? words : null)) {
      if (second !== null) await this.run(second, words);
    }
  }

  /** Shows the example, or else what to do first. */
  private async begin(first: Ask): Promise<void> {
    const { example } = this;
    const asksForIt = first.mode === "maps" && (first.model === "" || first.model === example?.model);
    if (example !== null && asksForIt && this.text.value === "") {
      this.fill(example);
      // A model that takes no such text is no reason to begin with an error.
      if (await this.run(example, {})) return;
    }
    this.say(this.hint(first.mode));
    this.text.focus();
  }

  /** Says what the reader sees, where that is the map of the example, and marks it in the history. */
  follow(item: number | null, view: string | null): void {
    const ask = item === null ? null : (this.done[this.mode][item] ?? null);
    const { example } = this;
    this.about.hidden = ask === null || example === null || view !== "map" || !holds(ask, example);
    this.history.mark(ask);
  }

  /** The words of the address that name the analyses of what is looked at. */
  words(items: number[]): Record<string, string> {
    const asks = items.slice(0, 2).map((item) => this.done[this.mode][item]);
    return Object.assign({}, ...asks.map((ask, k) => (ask === undefined ? {} : wordsOf(ask, k === 0 ? "" : "2"))));
  }

  private fill(ask: Ask): void {
    this.chosen = { ...this.chosen, mode: ask.mode, model: ask.model, rule: ask.rule, beside: false };
    this.text.value = ask.text;
    this.heads.checked = ask.heads ?? false;
    this.pair.value = ask.pair;
    this.second.value = ask.mode === "cosine" ? ask.pair : "";
    this.targetText.value = ask.targetText;
    this.target.value = ask.target;
    this.contrast.value = ask.contrast;
    this.position.value = ask.position;
    this.showChoices();
    this.showCount();
  }

  private ask(): Ask {
    const { mode } = this;
    const why = mode === "explain";
    const two = this.twoStacks;
    const { model, rule } = this.chosen;
    return {
      mode, model, rule,
      text: this.text.value,
      pair: mode === "cosine" ? this.second.value : two ? "" : this.pair.value,
      targetText: two && mode !== "cosine" ? this.targetText.value : "",
      target: why ? this.target.value : "",
      contrast: why ? this.contrast.value : "",
      position: why && !two ? this.position.value.replace("−", "-") : "",
      ...(mode === "maps" && this.heads.checked ? { heads: true } : {}),
    };
  }

  /** Whether the chosen model is an encoder–decoder. */
  private get twoStacks(): boolean {
    return this.stacksOf(this.chosen.model) === 2;
  }

  private stacksOf(model: string): 1 | 2 {
    return this.aboutModel(model)?.two_stacks ? 2 : 1;
  }

  private aboutModel(model: string): Model | undefined {
    return this.models.find(({ name }) => name === model);
  }

  private hint(mode: Mode): string {
    return this.twoStacks ? PAIR_HINTS[mode] : HINTS[mode];
  }

  /** Turns to maps, explanations or cosines; what was asked before is still there. */
  private choose(mode: Mode): void {
    this.set({ mode, rule: RULES[mode].includes(this.chosen.rule) ? this.chosen.rule : "ig" });
    if (this.page.filled) {
      this.chrome.show(this.page);
      this.page.redraw();
    } else this.chrome.blank();
    this.say(this.page.filled ? "" : this.hint(mode));
    this.changed();
  }

  private set(patch: Partial<typeof this.chosen>): void {
    this.chosen = { ...this.chosen, ...patch };
    this.showChoices();
    this.showCount();
  }

  private async analyse(): Promise<void> {
    if (this.working || this.start.disabled) return;
    const ask = this.ask();
    const other = this.askBeside(ask);
    const wrong = problemOf(ask) ?? (other === null ? null : problemOf(other));
    if (wrong !== null) return this.say(wrong);
    if (other !== null && sameQuestion(ask, other)) {
      return this.say(`Type another text to compare with${this.models.length > 1 ? ", or choose another model" : ""}.`);
    }
    if (!(await this.find(ask)) || other === null || !(await this.find(other))) return;
    const [first, second] = [ask, other].map((each) => this.placeOf(each));
    this.pages.maps.compare(first, second);
  }

  /** What is compared with: another text, another model, or both. */
  private askBeside(ask: Ask): Ask | null {
    const { mode, beside, other } = this.chosen;
    if (mode !== "maps" || !beside) return null;
    const model = other || ask.model;
    const alike = this.stacksOf(model) === this.stacksOf(ask.model);
    const text = this.second.value.trim() === "" ? ask.text : this.second.value;
    // A second text or a target text belongs to the text that it was typed for.
    const kept = alike && text === ask.text ? {} : { pair: "", targetText: "" };
    return { ...ask, model, text, ...kept };
  }

  private placeOf(ask: Ask): number {
    return this.done[ask.mode].findIndex((old) => holds(old, ask));
  }

  /** Shows an analysis: one that is at hand, or else one that is asked for; whether it is there. */
  private async find(ask: Ask): Promise<boolean> {
    const at = this.placeOf(ask);
    if (at >= 0) {
      this.say("This text was analysed already; here it is.");
      this.pages[ask.mode].update({ item: at });
      return true;
    }
    if (this.done[ask.mode].length >= MOST) {
      this.say(`This page holds ${MOST} analyses of a kind; reload it to begin anew. The history stays.`);
      return false;
    }
    return this.run(ask, null);
  }

  /** Goes back to an analysis of the history. */
  private async recall(ask: Ask): Promise<void> {
    if (this.working) return;
    if (!this.models.some(({ name }) => name === ask.model)) {
      return this.say(`The server does not offer the model ${ask.model}.`);
    }
    if (ask.mode !== this.mode) this.choose(ask.mode);
    this.fill(ask);
    await this.find(ask);
  }

  /** Asks for the maps that are looked at once more, with their heads. */
  private async computeHeads(): Promise<void> {
    const at = this.pages.maps.state.item;
    const ask = this.done.maps[at];
    if (this.working || ask === undefined) return;
    this.heads.checked = true;
    await this.run({ ...ask, heads: true }, null, at);
  }

  /** Whether the analysis came back. */
  private async run(ask: Ask, words: Record<string, string> | null, at: number | null = null): Promise<boolean> {
    this.busy(true);
    this.say("Sending …");
    try {
      const answered = await this.client.ask(ask, (status) => this.showProgress(status, ask.model));
      if (!(answered instanceof Uint8Array)) {
        this.say(answered.state === "cancelled" ? "Cancelled." : `It failed: ${answered.error ?? "unknown error"}`);
        return false;
      }
      const about = this.aboutModel(ask.model);
      if (about !== undefined) about.loaded = true;
      await this.show(ask, answered, words, at);
      return true;
    } catch (error) {
      this.say(message(error));
      return false;
    } finally {
      this.busy(false);
    }
  }

  /** Puts an answer on the page, in the place of another or behind the others. */
  private async show(ask: Ask, bytes: Uint8Array, words: Record<string, string> | null, at: number | null): Promise<void> {
    const source = new BytesSource(bytes);
    const { maps, explain, cosine } = this.pages;
    if (ask.mode === "maps") {
      const [item] = await open(source);
      this.done.maps[at ?? this.done.maps.length] = ask;
      if (at === null) maps.add(item, words);
      else maps.put(at, item);
      this.say(sizeInWords(item));
    } else if (ask.mode === "explain") {
      const [item] = openExplanations(source);
      this.done.explain.push(ask);
      explain.add(item, words);
      this.say(`${item.header.tokens.length} tokens, ${item.header.layers} layers.`);
    } else {
      const [item] = openCosines(source);
      this.done.cosine.push(ask);
      cosine.add(item, words);
      this.say(`${item.header.a.tokens.length} and ${item.header.b.tokens.length} tokens.`);
    }
    this.history.add(ask);
    this.changed();
  }

  private showProgress(status: Status, model: string): void {
    if (status.state === "queued") {
      this.meter.removeAttribute("value");
      const ahead = status.position ?? 0;
      this.say(ahead > 0 ? `Waiting; place ${ahead} in the queue.` : "Waiting …");
      return;
    }
    this.meter.value = status.layers > 0 ? status.layers_done / status.layers : 0;
    const loading = status.layers_done === 0 && this.aboutModel(model)?.loaded === false;
    this.say(`${loading ? `Loading ${model}; ` : ""}${status.layers_done} of ${status.layers} layers done …`);
  }

  private async cancel(): Promise<void> {
    if (!this.client.busy) return;
    this.say("Cancelling …");
    try {
      await this.client.cancel();
    } catch (error) {
      this.say(message(error));
    }
  }

  private busy(on: boolean): void {
    this.working = on;
    this.start.disabled = on;
    this.stop.hidden = this.meter.hidden = !on;
    // What comes back belongs to the kind that was asked for.
    this.mode_.set(this.mode, !on);
    this.chrome.root.dataset.analysing = String(on);
  }

  private showChoices(): void {
    const { mode, model, rule, beside, other } = this.chosen;
    const about = (one: Model) => `${one.name} (${one.family}, ${one.layers} layers${one.two_stacks ? ", encoder–decoder" : one.causal ? ", causal" : ""})`;
    this.mode_.set(mode);
    this.model.set(model, this.models.map((one) => [one.name, about(one)]));
    this.model.el.hidden = false;
    this.rule.set(rule, RULES[mode].map((name) => [name, name]));
    const two = this.twoStacks;
    for (const { modes, stacks, el } of this.fields) el.hidden = !modes.includes(mode) || !stacks.includes(two ? 2 : 1);
    const comparing = mode === "maps" && beside;
    if (mode === "maps") this.fields[0].el.hidden = !beside;
    this.second.placeholder = comparing ? "empty: the same text, with model B" : "";
    this.beside.hidden = mode !== "maps";
    this.beside.setAttribute("aria-pressed", String(beside));
    this.otherModel.set(other || model, this.models.map(({ name }) => [name, name]));
    if (!comparing) this.otherModel.el.hidden = true;
    this.targetLabel.textContent = two ? "Token" : "Target";
    this.target.placeholder = two ? "the last" : "what it says";
    this.target.title = two ? OF_TARGET_TEXT : TO_SAY;
    this.first.textContent = mode === "cosine" || comparing ? "Text A" : "Text";
    this.start.textContent = comparing ? "Compare" : ACTIONS[mode];
    Object.assign(this.chrome.root.dataset, { mode, stacks: two ? 2 : 1 });
    const why = this.whyNot();
    this.headless.hidden = why === null;
    this.headless.textContent = why;
  }

  /** What the chosen model does not offer in this mode, and what to choose instead. */
  private whyNot(): string | null {
    const { mode, model } = this.chosen;
    const two = this.twoStacks;
    if (mode === "cosine" && two) {
      return `A cosine is of models of one stack, and ${model} is an encoder–decoder; choose Maps or Explain.`;
    }
    if (mode !== "explain" || !this.models.some((one) => one.name === model && one.head === null)) return null;
    const others = this.models.filter((one) => one.head !== null).map((one) => one.name);
    return (
      `${model} has no head, so it says nothing that could be explained; choose ` +
      (two ? "Maps and give a target text" : "Cosine to compare two texts") +
      (others.length > 0 ? `, or the model ${others.join(" or ")}.` : ".")
    );
  }

  private showCount(): void {
    const { text, pair, targetText } = this.ask();
    const length = Math.max(text.length, pair.length, targetText.length);
    const over = length > this.limit;
    replace(this.count, over ? `${length} of at most ${this.limit} characters` : null);
    if (!this.working) this.start.disabled = over;
  }

  private say(text: string): void {
    this.message.textContent = text;
  }
}

function sizeInWords(item: Item): string {
  const { encoder, height, header } = item;
  if (encoder === null) return `${height} tokens, ${header.layers.length} layers.`;
  const sizes = [encoder, item].map((each) => `${each.header.stack}: ${each.height} tokens, ${each.header.layers.length} layers`);
  return [...sizes, ...targetWords(header.provenance)].join("; ");
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
