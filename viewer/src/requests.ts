// What the server's page asks for, and how it is written into an address.

export type Mode = "maps" | "explain" | "cosine";

export const MODES: Mode[] = ["maps", "explain", "cosine"];

/** Where each kind of question is sent. */
export const ADDRESSES: Record<Mode, string> = {
  maps: "api/analyses",
  explain: "api/explanations",
  cosine: "api/cosines",
};

const LINEAR = ["ig", "ig-bias", "gradient"];
export const RULES: Record<Mode, string[]> = { maps: [...LINEAR, "shapley"], explain: LINEAR, cosine: LINEAR };

export interface Ask {
  mode: Mode;
  model: string;
  text: string;
  pair: string;
  targetText: string; // of an encoder–decoder; empty: the model generates it
  rule: string;
  target: string;
  contrast: string;
  position: string;
  heads?: true; // maps of single heads, too
}

/** Whether two questions have the same answer. */
export function sameQuestion(one: Ask, other: Ask): boolean {
  return JSON.stringify(wordsOf(one)) === JSON.stringify(wordsOf(other));
}

/** Whether the answer to one question holds the answer to another, with heads or without them. */
export function holds(one: Ask, other: Ask): boolean {
  return sameQuestion(one, other) || sameQuestion(one, { ...other, heads: true });
}

/** Whether something that was kept elsewhere is a question. */
export function isQuestion(thing: unknown): thing is Ask {
  const ask = thing as Ask | null;
  const texts = [ask?.model, ask?.text, ask?.pair, ask?.targetText, ask?.rule, ask?.target, ask?.contrast, ask?.position];
  return MODES.some((mode) => mode === ask?.mode) && texts.every((text) => typeof text === "string");
}

/** A question from the words of an address; `suffix` is "2" for a second one. */
export function askOf(words: Record<string, string>, suffix = ""): Ask {
  const of = (name: string) => words[`${name}${suffix}`] ?? "";
  const mode = MODES.find((name) => name === words.mode) ?? "maps";
  const rule = RULES[mode].includes(of("rule")) ? of("rule") : "ig";
  return {
    mode, model: of("model"), text: of("text"), pair: of("pair"), targetText: of("target_text"), rule,
    target: of("target"), contrast: of("contrast"), position: of("position"),
    ...(mode === "maps" && of("with_heads") === "1" ? { heads: true } : {}),
  };
}

/** The words of an address that ask the same again. */
export function wordsOf(ask: Ask, suffix = ""): Record<string, string> {
  const words: Record<string, string> = {};
  if (ask.mode !== "maps") words.mode = ask.mode;
  words[`model${suffix}`] = ask.model;
  words[`text${suffix}`] = ask.text;
  if (ask.pair) words[`pair${suffix}`] = ask.pair;
  if (ask.targetText) words[`target_text${suffix}`] = ask.targetText;
  if (ask.rule !== "ig") words[`rule${suffix}`] = ask.rule;
  if (ask.heads) words[`with_heads${suffix}`] = "1";
  if (ask.mode === "explain") {
    for (const name of ["target", "contrast", "position"] as const) if (ask[name]) words[`${name}${suffix}`] = ask[name];
  }
  return words;
}

/** What is wrong with a question before it is sent, or null. */
export function problemOf(ask: Ask): string | null {
  if (ask.text.trim() === "") return "The text is empty; type at least one word.";
  if (ask.mode === "cosine" && ask.pair.trim() === "") return "The second text is empty; a cosine needs two.";
  const position = ask.position.trim();
  if (ask.mode === "explain" && position !== "" && !/^[+-]?\d{1,7}$/.test(position)) {
    return `The position is a whole number, not “${position}”.`;
  }
  return null;
}

/** The body of the request. */
export function bodyOf(ask: Ask): Record<string, unknown> {
  const { mode, model, text, pair, rule } = ask;
  const target_text = ask.targetText.trim() === "" ? {} : { target_text: ask.targetText };
  const heads = ask.heads ? { heads: true } : {};
  const asked = { model, text, pair: pair || null, rule, ...target_text, ...heads };
  if (mode !== "explain") return asked;
  return {
    ...asked,
    target: numbered(ask.target),
    contrast: numbered(ask.contrast),
    position: ask.position.trim() === "" ? null : Number(ask.position),
  };
}

/** A target: #12 is the token or class of that number, all else a word or label; ␣ is a space. */
function numbered(text: string): string | number | null {
  const number = /^#(\d{1,7})$/.exec(text.trim());
  if (number !== null) return Number(number[1]);
  return text === "" ? null : text.replaceAll("␣", " ");
}
