import assert from "node:assert/strict";
import { test } from "node:test";

import {
  centredRanks,
  columnShare,
  difference,
  extremePairs,
  mergeWords,
  normalise,
  pick,
  spearman,
} from "../src/measures";

const f = (...values: number[]) => Float32Array.from(values);

test("ranks share places among equal values", () => {
  assert.deepEqual([...(centredRanks(f(3, 1, 3, 2)) ?? [])], [2, -3, 2, -1]);
  assert.deepEqual([...(centredRanks(f(-1, -2, 0, -0)) ?? [])], [-1, -3, 2, 2]);
  assert.equal(centredRanks(f(1, NaN)), null);
});

test("the radix sort of long arrays gives the ranks of a plain sort", () => {
  let seed = 1;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const values = Float32Array.from({ length: 5000 }, () => Math.round((random() - 0.5) * 300) / 7);
  const sorted = [...values].sort((a, b) => a - b);
  const expected = [...values].map((v) => sorted.indexOf(v) + sorted.lastIndexOf(v) + 2 - 5001);
  assert.deepEqual([...(centredRanks(values) ?? [])], expected);
});

test("Spearman counts allowed pairs only", () => {
  const mask = Uint8Array.from([1, 0, 1, 1]);
  assert.equal(spearman(f(1, 0, 2, 3), f(10, 99, 20, 30), mask), 1);
  assert.equal(spearman(f(1, 0, 2, 3), f(30, 99, 20, 10), mask), -1);
  assert.ok(Number.isNaN(spearman(f(1, 1, 1, 1), f(1, 2, 3, 4), null)));
});

test("columns or rows sum to 1, and a column of zeros stays zero", () => {
  assert.deepEqual([...normalise(f(1, 0, 3, 0), 2, "source")], [0.25, 0, 0.75, 0]);
  assert.deepEqual([...normalise(f(1, 3, 2, 2), 2, "target")], [0.25, 0.75, 0.5, 0.5]);
  assert.deepEqual([...difference(f(1, 1, 1, 1), f(3, 1, 1, 1), 2, "source")], [0.25, 0, -0.25, 0]);
});

test("a map of more sources than targets is measured by its own rows and columns", () => {
  assert.deepEqual([...normalise(f(1, 3, 4, 1, 1, 6), 3, "source")], [0.5, 0.75, Math.fround(0.4), 0.5, 0.25, Math.fround(0.6)]);
  assert.deepEqual([...normalise(f(1, 3, 4, 1, 1, 6), 3, "target")], [0.125, 0.375, 0.5, 0.125, 0.125, 0.75]);
  assert.equal(columnShare(f(1, 3, 4, 1, 1, 6), 3, 1, 2), 0.6);
  assert.deepEqual([...mergeWords([1, 2, 3, 4, 5, 6], 3, [[0, 1], [2]], [[0, 1]])], [6, 4.5]);
  assert.deepEqual([...pick(f(1, 2, 3, 4, 5, 6), 3, [0, 2], [1])], [4, 6]);
  const { largest } = extremePairs(f(1, 9, 3, 4, 5, 6), 3, null, Uint8Array.from([0, 1, 0, 0, 0, 0]), 1);
  assert.deepEqual(largest, [{ target: 1, source: 2, value: 6 }]);
});

test("extreme pairs leave out the diagonal and what is not allowed", () => {
  const { largest, smallest } = extremePairs(
    f(9, 1, 2, -5, 9, 3, 4, 5, 9), 3, Uint8Array.from([1, 1, 0, 1, 1, 1, 1, 1, 1]),
    Uint8Array.from([1, 0, 0, 0, 1, 0, 0, 0, 1]), 2,
  );
  assert.deepEqual(largest, [
    { target: 2, source: 1, value: 5 },
    { target: 2, source: 0, value: 4 },
  ]);
  assert.deepEqual(smallest[0], { target: 1, source: 0, value: -5 });
});

test("words: columns summed, rows averaged", () => {
  assert.deepEqual([...mergeWords(f(1, 2, 3, 4), 2, [[0, 1]])], [5]);
  assert.deepEqual([...mergeWords([1, 2, 3, 4, 5, 6, 7, 8, 9], 3, [[0, 1], [2]])], [6, 4.5, 15, 9]);
  assert.deepEqual([...pick(f(1, 2, 3, 4, 5, 6, 7, 8, 9), 3, [0, 2])], [1, 3, 7, 9]);
});
