import assert from "node:assert/strict";
import test from "node:test";

import { csv } from "../src/save";

test("no text of a CSV file is a formula, and numbers stay numbers", () => {
  const rows = [["=1+1", "+a", "-", "@b", "\tc", "a=b", "'"], [-1.5, 2, NaN]];
  assert.equal(csv(rows), "'=1+1,'+a,'-,'@b,'\tc,a=b,'\n-1.5,2,\n");
});

test("a formula with a comma is marked and quoted", () => {
  assert.equal(csv([['=A("x",1)']]), `"'=A(""x"",1)"\n`);
});
