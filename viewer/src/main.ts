// Where the viewer finds itself: in a page with its maps inside, on a server's page, or in a notebook.

import { App } from "./app";
import { Chrome, type Surroundings } from "./chrome";
import { Base64Source, BytesSource, contents, type Source } from "./container";
import { open } from "./payload";
import { FORMAT as COSINES, openCosines } from "./cosine";
import { CosinePage } from "./cosinepage";
import { ExplainPage } from "./explainpage";
import { FORMAT as EXPLANATIONS, openExplanations } from "./explanation";
import { ServePanel } from "./serve";

declare global {
  interface HTMLElement {
    viewer?: App | ExplainPage | CosinePage;
  }
}

function wordsOf(text: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(text.replace(/^#/, "")));
}

/** Writes the state behind # without adding to the history. */
function setAddress(words: Record<string, string>): void {
  const text = new URLSearchParams(words).toString();
  try {
    history.replaceState(null, "", `#${text}`);
  } catch {
    // A frame inside a notebook has no address of its own.
  }
}

/** Opens a payload in the page for what it holds; returns how to open it again in another state. */
async function openPayload(
  chrome: Chrome,
  host: HTMLElement,
  source: Source,
  words: Record<string, string>,
): Promise<(words: Record<string, string>) => void> {
  const { format } = contents(source);
  if (format === EXPLANATIONS) {
    const page = new ExplainPage(chrome);
    host.viewer = page;
    const items = openExplanations(source);
    page.open(items, words);
    return (again) => page.open(items, again);
  }
  if (format === COSINES) {
    const page = new CosinePage(chrome);
    host.viewer = page;
    const items = openCosines(source);
    page.open(items, words);
    return (again) => page.open(items, again);
  }
  const app = new App(chrome);
  host.viewer = app;
  const items = await open(source);
  app.open(items, words);
  return (again) => app.open(items, again);
}

async function startFile(host: HTMLElement): Promise<void> {
  const around: Surroundings = {
    kind: "file",
    changed: setAddress,
    script: async () => document.getElementById("normlens-script")?.textContent ?? "",
    dark: () => null,
  };
  const chrome = new Chrome(host, around);
  try {
    const text = document.getElementById("normlens-payload")?.textContent ?? "";
    const first = location.hash.length > 1 ? location.hash : (host.dataset.state ?? "");
    const reopen = await openPayload(chrome, host, new Base64Source(text.trim()), wordsOf(first));
    window.addEventListener("hashchange", () => reopen(wordsOf(location.hash)));
  } catch (error) {
    chrome.fail(error);
  }
}

async function startServe(host: HTMLElement): Promise<void> {
  let panel: ServePanel | null = null;
  const showAddress = () => {
    if (panel === null) return;
    if (!panel.page.filled) {
      panel.follow(null, null);
      return setAddress(panel.mode === "maps" ? {} : { mode: panel.mode });
    }
    const words = panel.page.words();
    if (panel.mode === "maps") panel.follow(app.state.item, app.state.view);
    else panel.follow(Number(words.item ?? 0), null);
    if (panel.mode !== "maps") {
      const { item = "0", ...state } = words;
      return setAddress({ ...panel.words([Number(item)]), ...state });
    }
    const { item, view, a, b } = app.state;
    const used = view === "compare" ? [...new Set([item, a.item, b.item])] : [item];
    // Items are numbered anew in the address, which names only those that are looked at.
    const renumbered = { ...words };
    delete renumbered.item;
    for (const side of ["a", "b"] as const) {
      if (words[side] === undefined) continue;
      const [at, ...rest] = words[side].split(":");
      renumbered[side] = [used.indexOf(Number(at)), ...rest].join(":");
    }
    setAddress({ ...panel.words(used), ...renumbered });
  };
  const around: Surroundings = {
    kind: "serve",
    changed: showAddress,
    script: async () => (await fetch("static/viewer.js")).text(),
    dark: () => null,
  };
  const chrome = new Chrome(host, around);
  const app = new App(chrome);
  host.viewer = app;
  const pages = { maps: app, explain: new ExplainPage(chrome), cosine: new CosinePage(chrome) };
  panel = new ServePanel(chrome, pages, showAddress);
  await panel.open(wordsOf(location.hash));
}

interface WidgetModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, call: () => void): void;
  off(event: string, call: () => void): void;
}

function bytesOf(value: unknown): Uint8Array {
  if (value instanceof DataView) {
    return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  }
  return new Uint8Array(value as ArrayBuffer);
}

/** Whether the notebook says that it is dark. */
function notebookIsDark(): boolean | null {
  const { body } = document;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false";
  if (body.classList.contains("vscode-dark")) return true;
  if (body.classList.contains("vscode-light")) return false;
  if (document.documentElement.getAttribute("theme") === "dark") return true;
  return null;
}

function render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
  const host = document.createElement("div");
  el.append(host);
  let written = "";
  const around: Surroundings = {
    kind: "widget",
    changed: (words) => {
      written = JSON.stringify(words);
      model.set("state", words);
      model.save_changes();
    },
    script: async () => String(model.get("_esm") ?? ""),
    dark: notebookIsDark,
  };
  const chrome = new Chrome(host, around);
  let reopen: ((words: Record<string, string>) => void) | null = null;
  const load = async () => {
    try {
      const source = new BytesSource(bytesOf(model.get("payload")));
      reopen = await openPayload(chrome, host, source, model.get("state") as Record<string, string>);
    } catch (error) {
      chrome.fail(error);
    }
  };
  const follow = () => {
    const words = model.get("state") as Record<string, string>;
    if (JSON.stringify(words) !== written) reopen?.(words);
  };
  model.on("change:payload", load);
  model.on("change:state", follow);
  void load();
  return () => {
    model.off("change:payload", load);
    model.off("change:state", follow);
  };
}

export default { render };

const page = typeof document === "undefined" ? null : document.getElementById("normlens-page");
if (page !== null && page.viewer === undefined) {
  void (page.dataset.mode === "serve" ? startServe(page) : startFile(page));
}
