// What stands around every page: header, theme, files to save, tooltip, and a voice for screen readers.

import { DARK, LIGHT, type Ink } from "./colours";
import { h, replace } from "./dom";
import { csv, download, png, standalone, svgText, type Row } from "./save";
import css from "./style.css";

export interface Surroundings {
  kind: "file" | "serve" | "widget";
  /** Called with the state's words whenever it changes. */
  changed(words: Record<string, string>): void;
  /** The text of this script, for saving the page. */
  script(): Promise<string>;
  /** Whether the page around the viewer is dark; null where it does not say. */
  dark(): boolean | null;
}

/** What is looked at: maps, explanations or cosines. */
export interface Page {
  readonly el: HTMLElement;
  /** How to read it, in three sentences, for a page that travels alone. */
  readonly guide: string;
  /** Controls of its own in the header. */
  readonly extras: HTMLElement[];
  /** Whether there is anything to draw and to save. */
  readonly filled: boolean;
  /** Draws anew after the theme or the width changed. */
  redraw(): void;
  /** Whether the page took a key. */
  key(event: KeyboardEvent, from: HTMLElement): boolean;
  /** What a saved file is called, without its ending. */
  fileName(): string;
  figure(): Promise<SVGElement>;
  table(): Promise<Row[]>;
  /** Everything as JSON, where the page offers it. */
  json(): unknown;
  /** The page's payload in base64, and its state, for saving it whole. */
  payload(): string;
  words(): Record<string, string>;
}

const NARROW = 600; // pixels below which the picture comes first, and its controls behind it

type Theme = "auto" | "light" | "dark";

export class Chrome {
  readonly root: HTMLElement;
  /** A place for what a surrounding puts above the page. */
  readonly above = h("div", { class: "above" });
  private readonly stage = h("div", { class: "content", hidden: true });
  private readonly extras = h("div", { class: "row" });
  private readonly guide = h("p", { class: "note guide" });
  private readonly tip = h("div", { class: "tooltip", hidden: true });
  private readonly live = h("div", { class: "unseen", role: "status", "aria-live": "polite" });
  private readonly trusted = h("p", { class: "trust", "aria-label": "How this was made" });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  private readonly themeButton = h("button", {
    type: "button",
    "data-action": "theme",
    title: "Light or dark",
    "aria-label": "Light or dark",
    onclick: () => this.switchTheme(),
  }, "◐");
  private readonly jsonButton = this.saveButton("JSON", "Everything in this view as JSON", async (page) =>
    download(`${page.fileName()}.json`, `${JSON.stringify(page.json(), null, 1)}\n`, "application/json"),
  );
  private theme: Theme = "auto";
  private page: Page | null = null;

  constructor(
    host: HTMLElement,
    readonly around: Surroundings,
  ) {
    this.root = h("div", { class: `normlens ${around.kind}`, "data-lm-suppress-shortcuts": "true" });
    this.root.append(this.header(), this.problem, this.above, this.guide, this.stage, this.tip, this.live);
    const shadow = host.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
    shadow.adoptedStyleSheets = [sheet];
    shadow.append(this.root);
    this.listen(host);
    this.applyTheme();
  }

  /** Puts a page on the stage. */
  show(page: Page): void {
    this.stage.hidden = false;
    if (this.page === page) return;
    this.page = page;
    this.guide.hidden = this.around.kind !== "file";
    this.guide.textContent = page.guide;
    replace(this.stage, page.el);
    replace(this.extras, ...page.extras, this.themeButton);
    this.jsonButton.hidden = page.json() === null;
    this.clear();
  }

  /** Takes the page off the stage; another one is to come. */
  blank(): void {
    this.page = null;
    this.stage.hidden = true;
    replace(this.stage);
    replace(this.extras, this.themeButton);
    replace(this.trusted);
    this.clear();
  }

  get ink(): Ink {
    return this.root.dataset.theme === "dark" ? DARK : LIGHT;
  }

  get width(): number {
    return Math.max(300, this.root.clientWidth - 32);
  }

  /** Says how what is shown was made: completeness first, which says how far to trust it. */
  trust(words: string[], title: string): void {
    replace(this.trusted, ...words.map((word) => h("span", {}, word)));
    this.trusted.title = title;
  }

  say(text: string): void {
    this.live.textContent = text;
  }

  fail(error: unknown): void {
    this.problem.hidden = false;
    this.problem.textContent = error instanceof Error ? error.message : String(error);
    this.root.dataset.busy = "false";
  }

  clear(): void {
    this.problem.hidden = true;
  }

  tooltip(lines: string[] | null, event: PointerEvent | null): void {
    this.tip.hidden = lines === null || event === null;
    if (lines === null || event === null) return;
    replace(this.tip, ...lines.map((line) => h("div", {}, line)));
    const box = this.root.getBoundingClientRect();
    const x = event.clientX - box.left + 14;
    const y = event.clientY - box.top + 14;
    this.tip.style.left = `${Math.max(4, Math.min(x, box.width - this.tip.offsetWidth - 8))}px`;
    this.tip.style.top = `${y}px`;
  }

  private header(): HTMLElement {
    replace(this.extras, this.themeButton);
    return h(
      "header",
      { class: "head" },
      h("span", { class: "brand" }, "Norm", h("b", {}, "Lens")),
      this.trusted,
      h(
        "div",
        { class: "row", role: "group", "aria-label": "Save" },
        h("span", { class: "label", "aria-hidden": "true" }, "Save"),
        h(
          "span",
          { class: "buttons" },
          this.saveButton("SVG", "This view as a vector figure", async (page) =>
            download(`${page.fileName()}.svg`, svgText(await page.figure()), "image/svg+xml"),
          ),
          this.saveButton("PNG", "This view as a picture", async (page) =>
            download(`${page.fileName()}.png`, await png(await page.figure())),
          ),
          this.saveButton("CSV", "The numbers of this view", async (page) =>
            download(`${page.fileName()}.csv`, csv(await page.table()), "text/csv"),
          ),
          this.jsonButton,
          this.saveButton("HTML", "The whole viewer with what it shows", async (page) =>
            download("normlens.html", await this.document(page), "text/html"),
          ),
        ),
      ),
      this.extras,
    );
  }

  private saveButton(kind: string, title: string, action: (page: Page) => Promise<void>): HTMLElement {
    return h(
      "button",
      {
        type: "button",
        "data-save": kind.toLowerCase(),
        title,
        onclick: () => {
          if (this.page?.filled) action(this.page).catch((error) => this.fail(error));
        },
      },
      kind,
    );
  }

  /** A page of its own with everything that is shown. */
  async document(page: Page): Promise<string> {
    const state = new URLSearchParams(page.words()).toString();
    const title = document.title && this.around.kind !== "widget" ? document.title : "NormLens";
    return standalone({ title, state, payload: page.payload(), script: await this.around.script() });
  }

  private listen(host: HTMLElement): void {
    const widget = this.around.kind === "widget";
    const target: HTMLElement | Document = widget ? this.root : document;
    target.addEventListener("keydown", (event) => this.key(event as KeyboardEvent));
    let width = 0;
    new ResizeObserver(() => {
      const now = this.root.clientWidth;
      if (Math.abs(now - width) < 2) return;
      width = now;
      this.root.dataset.narrow = String(now < NARROW);
      if (now > 0) this.redraw();
    }).observe(host);
    const query = window.matchMedia("(prefers-color-scheme: dark)");
    query.addEventListener("change", () => {
      this.applyTheme();
      this.redraw();
    });
  }

  private key(event: KeyboardEvent): void {
    const from = event.composedPath()[0] as HTMLElement;
    const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(from.tagName ?? "");
    if (!this.page?.filled || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!this.page.key(event, from)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  private redraw(): void {
    if (this.page?.filled) this.page.redraw();
  }

  private switchTheme(): void {
    this.theme = this.ink.dark ? "light" : "dark";
    this.applyTheme();
    this.redraw();
  }

  private applyTheme(): void {
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const dark = this.theme === "auto" ? (this.around.dark() ?? system) : this.theme === "dark";
    this.root.dataset.theme = dark ? "dark" : "light";
    if (this.around.kind !== "widget") {
      document.documentElement.style.colorScheme = dark ? "dark" : "light";
      document.body.style.margin = "0";
      document.body.style.background = dark ? DARK.paper : LIGHT.paper;
    }
  }
}
