// The form above the maps on the page of the local server; see CONTRACT.md for its requests.

import type { App } from "./app";
import type { Chrome } from "./chrome";
import { h, list, replace } from "./dom";
import { BytesSource } from "./container";
import { open } from "./payload";

interface Model {
  name: string;
  family: string;
  layers: number;
  scopes: string[];
  causal: boolean;
  max_tokens: number | null;
  loaded: boolean;
}

interface Status {
  id: string;
  state: "queued" | "running" | "done" | "failed" | "cancelled";
  position: number | null;
  layers_done: number;
  layers: number;
  error: string | null;
}

export interface Request_ {
  model: string;
  text: string;
  pair: string;
  rule: string;
}

const RULES = ["ig", "ig-bias", "gradient", "shapley"];
const WAIT = 300; // milliseconds between two questions about progress
const MOST = 8; // analyses that the page keeps

export class ServePanel {
  private readonly model;
  private readonly rule;
  private readonly text = h("textarea", { rows: 2, "data-field": "text", spellcheck: "false" });
  private readonly pair = h("input", { type: "text", "data-field": "pair" });
  private readonly count = h("span", { class: "note" });
  private readonly start = h("button", { type: "submit", class: "primary", "data-action": "analyse" }, "Analyse");
  private readonly stop = h("button", { type: "button", hidden: true, "data-action": "cancel", onclick: () => void this.cancel() }, "Cancel");
  private readonly meter = h("progress", { hidden: true, max: 1, "aria-label": "Progress" });
  private readonly message = h("span", { class: "message", role: "status", "aria-live": "polite", "data-role": "message" });
  private models: Model[] = [];
  private limit = Infinity;
  private running: string | null = null;
  private chosen = { model: "", rule: "ig" };
  private readonly done: Request_[] = [];

  constructor(
    private readonly chrome: Chrome,
    private readonly app: App,
    private readonly changed: () => void,
  ) {
    this.model = list("Model", (model) => {
      this.chosen.model = model;
      this.showChoices();
    }, "model");
    this.rule = list("Rule", (rule) => {
      this.chosen.rule = rule;
      this.showChoices();
    }, "rule");
    this.text.addEventListener("input", () => this.showCount());
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        void this.analyse();
      }
    });
    const form = h(
      "form",
      {
        class: "ask",
        onsubmit: (event: Event) => {
          event.preventDefault();
          void this.analyse();
        },
      },
      h("label", { class: "text" }, h("span", { class: "label" }, "Text"), this.text),
      h(
        "div",
        { class: "toolbar" },
        this.model.el,
        this.rule.el,
        h("label", { class: "control" }, h("span", { class: "label" }, "Second text"), this.pair),
        this.start,
        this.stop,
        this.meter,
        this.message,
        this.count,
      ),
    );
    chrome.above.append(form);
  }

  /** Asks for the models, then analyses what the address names. */
  async open(words: Record<string, string>): Promise<void> {
    try {
      const { models, limits } = await answer<{ models: Model[]; limits: Record<string, number> }>(
        await fetch("api/models"),
      );
      this.models = models;
      this.limit = limits?.text_characters ?? Infinity;
    } catch (error) {
      this.say(`The server does not answer: ${message(error)}`);
      return;
    }
    const known = (name: string | undefined) => this.models.find((model) => model.name === name)?.name;
    this.chosen.model = known(words.model) ?? this.models[0]?.name ?? "";
    if (RULES.includes(words.rule)) this.chosen.rule = words.rule;
    this.text.value = words.text ?? "";
    this.pair.value = words.pair ?? "";
    this.showChoices();
    this.showCount();
    if (!words.text) {
      this.say("Type a text and press Enter.");
      this.text.focus();
      return;
    }
    if (words.model && !known(words.model)) {
      this.say(`The server does not offer the model ${words.model}.`);
      return;
    }
    const second = words.text2
      ? { model: known(words.model2) ?? this.chosen.model, text: words.text2, pair: words.pair2 ?? "", rule: words.rule2 ?? "ig" }
      : null;
    if (await this.run(this.request(), second === null ? words : null)) {
      if (second !== null) await this.run(second, words);
    }
  }

  /** The words of the address that name the analyses of the maps looked at. */
  words(items: number[]): Record<string, string> {
    const words: Record<string, string> = {};
    items.slice(0, 2).forEach((item, k) => {
      const request = this.done[item];
      if (request === undefined) return;
      const suffix = k === 0 ? "" : "2";
      words[`model${suffix}`] = request.model;
      words[`text${suffix}`] = request.text;
      if (request.pair) words[`pair${suffix}`] = request.pair;
      if (request.rule !== "ig") words[`rule${suffix}`] = request.rule;
    });
    return words;
  }

  private request(): Request_ {
    return { ...this.chosen, text: this.text.value, pair: this.pair.value };
  }

  private async analyse(): Promise<void> {
    if (this.running !== null || this.start.disabled) return;
    const request = this.request();
    if (request.text.trim() === "") return this.say("The text is empty; type at least one word.");
    const same = this.done.findIndex((old) => JSON.stringify(old) === JSON.stringify(request));
    if (same >= 0) {
      this.say("This text was analysed already; here it is.");
      return this.app.update({ item: same });
    }
    if (this.done.length >= MOST) {
      return this.say(`This page holds ${MOST} analyses; reload it to begin anew.`);
    }
    await this.run(request, null);
  }

  /** Whether the analysis came back. */
  private async run(request: Request_, words: Record<string, string> | null): Promise<boolean> {
    this.busy(true);
    this.say("Sending …");
    try {
      const { id } = await answer<{ id: string }>(
        await fetch("api/analyses", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ ...request, pair: request.pair || null }),
        }),
      );
      this.running = id;
      const status = await this.wait(id);
      if (status.state !== "done") {
        this.say(status.state === "cancelled" ? "Cancelled." : `It failed: ${status.error ?? "unknown error"}`);
        return false;
      }
      const response = await fetch(`api/analyses/${encodeURIComponent(id)}/maps`);
      if (!response.ok) await answer(response);
      const [item] = await open(new BytesSource(new Uint8Array(await response.arrayBuffer())));
      this.done.push(request);
      this.app.add(item, words);
      this.changed();
      this.say(`${item.n} tokens, ${item.header.layers.length} layers.`);
      return true;
    } catch (error) {
      this.say(message(error));
      return false;
    } finally {
      this.running = null;
      this.busy(false);
    }
  }

  private async wait(id: string): Promise<Status> {
    for (;;) {
      const status = await answer<Status>(await fetch(`api/analyses/${encodeURIComponent(id)}`));
      if (status.state === "queued") {
        this.meter.removeAttribute("value");
        const ahead = status.position ?? 0;
        this.say(ahead > 0 ? `Waiting; place ${ahead} in the queue.` : "Waiting …");
      } else if (status.state === "running") {
        this.meter.value = status.layers > 0 ? status.layers_done / status.layers : 0;
        this.say(`${status.layers_done} of ${status.layers} layers done …`);
      } else return status;
      await new Promise((done) => setTimeout(done, WAIT));
    }
  }

  private async cancel(): Promise<void> {
    if (this.running === null) return;
    this.say("Cancelling …");
    try {
      await fetch(`api/analyses/${encodeURIComponent(this.running)}`, { method: "DELETE" });
    } catch (error) {
      this.say(message(error));
    }
  }

  private busy(on: boolean): void {
    this.start.disabled = on;
    this.stop.hidden = this.meter.hidden = !on;
    this.chrome.root.dataset.analysing = String(on);
  }

  private showChoices(): void {
    const about = (model: Model) =>
      `${model.name} (${model.family}, ${model.layers} layers${model.causal ? ", causal" : ""})`;
    this.model.set(this.chosen.model, this.models.map((model) => [model.name, about(model)]));
    this.model.el.hidden = false;
    this.rule.set(this.chosen.rule, RULES.map((rule) => [rule, rule]));
  }

  private showCount(): void {
    const length = this.text.value.length;
    const over = length > this.limit;
    replace(this.count, over ? `${length} of at most ${this.limit} characters` : null);
    if (this.running === null) this.start.disabled = over;
  }

  private say(text: string): void {
    this.message.textContent = text;
  }
}

async function answer<T>(response: Response): Promise<T> {
  const body: unknown = await response.json().catch(() => null);
  if (response.ok) return body as T;
  const detail = (body as { detail?: unknown } | null)?.detail;
  const words = Array.isArray(detail)
    ? detail.map((entry: { msg?: string }) => entry?.msg ?? String(entry)).join("; ")
    : detail;
  throw new Error(words ? String(words) : `the server answered ${response.status}`);
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
