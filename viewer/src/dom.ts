// Elements from tags, attributes and children. Strings become text nodes, never markup.

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, unknown>;

const SVG = "http://www.w3.org/2000/svg";

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag) as SVGElement;
  fill(element, attributes, children);
  return element;
}

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value as EventListener);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children) if (child) element.append(child);
}

export interface Choice<T extends string> {
  value: T;
  label: string;
  title?: string;
}

export interface Control<T> {
  el: HTMLElement;
  set(value: T, enabled?: boolean): void;
}

/** Buttons of which one is pressed. */
export function buttons<T extends string>(
  label: string,
  choices: Choice<T>[],
  change: (value: T) => void,
  name: string,
): Control<T> {
  const made = choices.map((choice) =>
    h(
      "button",
      {
        type: "button",
        title: choice.title,
        "data-value": choice.value,
        onclick: () => change(choice.value),
      },
      choice.label,
    ),
  );
  const el = h(
    "div",
    { class: "control", role: "group", "aria-label": label, "data-control": name },
    h("span", { class: "label", "aria-hidden": "true" }, label),
    h("span", { class: "buttons" }, ...made),
  );
  return {
    el,
    set(value, enabled = true) {
      made.forEach((button, k) => {
        button.setAttribute("aria-pressed", String(choices[k].value === value));
        button.disabled = !enabled;
      });
    },
  };
}

/** A list of which one is chosen; its options may change. */
export function list(
  label: string,
  change: (value: string) => void,
  name: string,
): { el: HTMLElement; set(value: string, options: [string, string][]): void } {
  const select = h("select", { onchange: () => change(select.value), "data-control": name });
  const el = h("label", { class: "control" }, h("span", { class: "label" }, label), select);
  let shown = "";
  return {
    el,
    set(value, options) {
      const key = JSON.stringify(options);
      if (key !== shown) {
        shown = key;
        select.replaceChildren(...options.map(([of, text]) => h("option", { value: of }, text)));
      }
      select.value = value;
      el.hidden = options.length < 2;
    },
  };
}

export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren(...children.filter((child): child is Node | string => Boolean(child)));
}

/** Lets the page answer before long work goes on. */
export function pause(): Promise<void> {
  return new Promise((done) => setTimeout(done, 0));
}
