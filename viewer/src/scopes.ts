// Names of scopes, as in normlens.scopes.

export function componentsOf(scope: string): string[] {
  return scope.slice(0, scope.lastIndexOf("-")).match(/ATTN|CROSS|PROJ|RES|LN|FF/g) ?? [];
}

/** What the maps of a scope’s single heads are called. */
export function headScope(scope: string): string {
  return scope.endsWith("CROSS-N") ? "CROSS-N" : scope;
}

/** Short names: a scope by its last component, numbered where the layer has several of it. */
export function aliases(scopes: string[]): Map<string, string> {
  const prefixes = scopes.filter((scope) => scope.endsWith("-N"));
  const longest = prefixes.map(componentsOf).reduce((a, b) => (b.length > a.length ? b : a), []);
  const count = (parts: string[], name: string) => parts.filter((part) => part === name).length;
  const names = new Map<string, string>();
  for (const scope of prefixes) {
    const parts = componentsOf(scope);
    const last = parts[parts.length - 1];
    if (count(longest, last) === 1) names.set(last, scope);
    names.set(`${last}${count(parts, last)}`, scope);
    names.set(scope.slice(0, -2), scope);
    if (last === "CROSS") names.set("CROSS-N", scope);
  }
  return names;
}

/** The scope that a full or short name means, or null. */
export function resolve(name: string, scopes: string[]): string | null {
  const wanted = name.trim().toUpperCase();
  return scopes.includes(wanted) ? wanted : (aliases(scopes).get(wanted) ?? null);
}

export function shortName(scope: string, scopes: string[]): string {
  for (const [name, full] of aliases(scopes)) if (full === scope) return name;
  return scope;
}

export interface Step {
  component: string; // what was added to the scope before, such as "FF"
  short: string; // a name that is unique in the layer, such as "LN2"
  before: string;
  after: string;
}

/** Scopes of the layer in which each has the one before as its beginning; weights stand before what they weigh. */
export function chain(scopes: string[]): string[] {
  const whole = scopes
    .filter((scope) => scope.endsWith("-N"))
    .flatMap((scope) => {
      const weights = componentsOf(scope).at(-1) === "CROSS" ? "CROSS-W" : scope === "ATTN-N" ? "ATTN-W" : "";
      return scopes.includes(weights) ? [weights, scope] : [scope];
    });
  // Layers without ATTN-N may still have its weights.
  if (scopes.includes("ATTN-W") && !whole.includes("ATTN-W")) whole.unshift("ATTN-W");
  return whole.length > 0 ? whole : scopes;
}

/** What a scope of a chain adds to the one with norms before it. */
export function added(scope: string, sequence: string[]): string {
  if (scope === "ATTN-W") return "weights";
  if (scope.endsWith("-W")) return `${componentsOf(scope).join(" ")} weights`;
  const before = sequence.slice(0, sequence.indexOf(scope)).filter((name) => name.endsWith("-N")).at(-1);
  const known = before === undefined ? 0 : componentsOf(before).length;
  return componentsOf(scope).slice(known).join(" ") || scope;
}

const PLAIN: Record<string, string> = {
  ATTN: "attention", CROSS: "cross-attention", RES: "residual", LN: "norm", "(LN)": "norm", FF: "feed-forward", END: "end",
};

/** The papers' abbreviations of components in plain words. */
export function plain(components: string): string {
  return components.split(" ").map((name) => PLAIN[name.replace(/^(\(?[A-Z]+\)?)\d*$/, "$1")] ?? name).join(" + ");
}

/** A scope in plain words, which begin with what comes last, and as the papers call it. */
export function scopeWords(scope: string): [string, string] {
  const words = componentsOf(scope).map(plain);
  const before = words.slice(0, -1).join(", ");
  const weights = scope.endsWith("-W") ? " (weights)" : "";
  return [`After ${words.at(-1)}${weights}${before === "" ? "" : ` (behind ${before})`}`, scope];
}

/** The steps of a layer, as in normlens.scopes.consecutive: of CROSS from its own weights, which alone share its pairs. */
export function steps(scopes: string[]): Step[] {
  const sequence = chain(scopes);
  return sequence.flatMap((after, k) => {
    const before = sequence[k - 1];
    const alone = componentsOf(after).at(-1) === "CROSS" && before !== "CROSS-W";
    if (before === undefined || after.endsWith("-W") || alone) return [];
    return [{ component: added(after, sequence), short: shortName(after, scopes), before, after }];
  });
}

/** The step of the feed-forward block, unless the block works beside the attention. */
export function feedForward(scopes: string[], components: string): Step | null {
  if (components.includes("∥")) return null;
  return steps(scopes).find((step) => step.component === "FF") ?? null;
}

/** What a map's values are; maps whose sources are the model's input tokens say so in their provenance. */
export function unit(scope: string, axis: string, provenance: Record<string, unknown>): string {
  if (axis === "source") return "share of each source’s column";
  if (axis === "target") return "share of each target’s row";
  const rollout = provenance.rollout as { method?: unknown } | undefined;
  if (provenance.origin === "rollout") return `rollout (${String(rollout?.method ?? scope)}) up to this layer`;
  if (!scope.endsWith("-N")) return "attention weight";
  return provenance.origin === "input" ? "norm of what input token j gave" : "norm of the part ‖Fᵢ(xⱼ)‖";
}

/** The same of a map of one head. */
export function headUnit(scope: string, axis: string, provenance: Record<string, unknown>, alone: boolean): string {
  if (!alone || axis !== "none" || !scope.endsWith("-N")) return unit(scope, axis, provenance);
  return "norm of the head’s part αᵢⱼ‖f(xⱼ)‖";
}
