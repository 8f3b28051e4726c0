// The tokens along one axis of a map as they are looked at: all or some of them, subwords or words.

/** Tokens as the payload's headers name them. */
export interface Tokens {
  tokens: string[];
  labels: string[];
  special: boolean[];
  words: (number | null)[] | null;
  word_labels: string[];
  sequences?: string[]; // of each token, where the columns are other tokens than the rows
}

export class ShownAxis {
  readonly labels: string[];
  readonly special: boolean[];
  readonly positions: number[]; // of the first token of each label, in its sequence
  readonly sequences: string[]; // of each label; empty where there is one sequence alone
  /** Tokens of each word, before any is left out; null: words are not asked for. */
  readonly groups: number[][] | null;
  /** Places that are shown among the tokens or words; null: all. */
  readonly keep: number[] | null;

  /** `sequence` keeps the tokens of one sequence only; null keeps all. */
  constructor(tokens: Tokens, withSpecial: boolean, words: boolean, sequence: string | null = null) {
    const places = placesIn(tokens);
    this.groups = words && tokens.words !== null ? wordGroups(tokens.words) : null;
    const first = this.groups?.map((group) => group[0]) ?? tokens.tokens.map((_, k) => k);
    const labels = first.map((token) => {
      const word = this.groups === null ? null : tokens.words?.[token];
      return word === null || word === undefined ? tokens.labels[token] : tokens.word_labels[word];
    });
    const special = first.map((token) => tokens.special[token]);
    const all = labels.map((_, k) => k);
    const of = sequence === null ? all : some(all, (k) => tokens.sequences?.[first[k]] === sequence);
    const chosen = withSpecial ? of : some(of, (k) => !special[k]);
    this.keep = chosen.length < all.length ? chosen : null;
    this.labels = chosen.map((k) => labels[k]);
    this.special = chosen.map((k) => special[k]);
    this.positions = chosen.map((k) => places[first[k]]);
    this.sequences = tokens.sequences === undefined ? [] : chosen.map((k) => tokens.sequences?.[first[k]] as string);
  }

  get size(): number {
    return this.labels.length;
  }

  /** Whether this is the axis of the tokens themselves. */
  get plain(): boolean {
    return this.groups === null && this.keep === null;
  }
}

/** Those that fit, or all where none does: an axis is never empty. */
function some(places: number[], fits: (place: number) => boolean): number[] {
  const found = places.filter(fits);
  return found.length > 0 ? found : places;
}

/** Where each token stands in its sequence. */
function placesIn({ tokens, sequences }: Tokens): number[] {
  const count = new Map<string, number>();
  return tokens.map((_, k) => {
    const name = sequences?.[k] ?? "";
    const place = count.get(name) ?? 0;
    count.set(name, place + 1);
    return place;
  });
}

/** Tokens of each word; a token without a word stays alone. */
export function wordGroups(words: (number | null)[]): number[][] {
  const groups = new Map<number | string, number[]>();
  words.forEach((word, token) => {
    const key = word ?? `token ${token}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [token]);
    else group.push(token);
  });
  return [...groups.values()];
}
