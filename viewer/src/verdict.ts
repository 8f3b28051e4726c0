// What is explained, in words and numbers.

import { number, signed } from "./colours";
import type { ExplanationHeader } from "./explanation";
import { percent } from "./sequences";

/** The question in words, as Explanation.question asks it. */
export function questionOf({ question, position, labels, task, sequences }: ExplanationHeader): string {
  const sentence = question.charAt(0).toUpperCase() + question.slice(1);
  const mark = question.startsWith("why") ? "?" : "";
  const next = task.includes("language model") || sequences !== null;
  const where = next && position !== null ? ` after “${labels[position]}” (${position - (sequences?.source_tokens ?? 0)})` : "";
  return `${sentence}${task.includes("masked") ? where.replace("after", "at") : where}${mark}`;
}

/** Names and values beside the question. */
export function facts(header: ExplanationHeader): [string, string][] {
  const { target, target_value, probability, contrast, contrast_value, contrast_probability } = header;
  const found: [string, string][] = [[contrast === null ? "score" : "difference", number(header.value)]];
  const one = (name: string, value: number | null, p: number | null) => {
    const parts = [value === null ? "" : number(value), p === null ? "" : `p = ${share(p)}`];
    found.push([name, parts.filter(Boolean).join(", ")]);
  };
  if (target !== null && (contrast !== null || probability !== null)) one(target, target_value, probability);
  if (contrast !== null) one(contrast, contrast_value, contrast_probability);
  found.push(["remainder", signed(header.remainder)]);
  if (header.sequences !== null) {
    const { source_share, source_share_absolute } = header.sequences.shares;
    found.push(["source’s share", `${percent(source_share)} (${percent(source_share_absolute)} of absolute contributions)`]);
  }
  return found;
}

function share(p: number): string {
  return p >= 0.001 ? `${(100 * p).toPrecision(3)} %` : p.toExponential(1).replace("-", "−");
}

/** Tokens and remainder add up to the score. */
export function sumOf(header: ExplanationHeader, contributions: Float32Array, remainder: number, sources?: number): string {
  const added = (value: number) => `${value < 0 ? "−" : "+"} ${number(Math.abs(value))}`;
  const end = `${added(remainder)} from no token = ${number(header.value)}`;
  const total = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0);
  if (sources !== undefined) {
    const [source, prefix] = [contributions.subarray(0, sources), contributions.subarray(sources)].map(total);
    return `${number(source)} from the source ${added(prefix)} from the prefix ${end}`;
  }
  return `${number(total(contributions))} from ${contributions.length} tokens ${end}`;
}
