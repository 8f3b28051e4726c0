// Every pair of a map as the rows of a table.

import { groupAt } from "./groups";
import { placeOf, type Heat } from "./heatframe";
import type { Row } from "./save";

/** One row per target and source, as in Python's tables: what all rows share, the pair, and its values. */
export function pairTable(heat: Heat, shared: Record<string, string | number>, values: Record<string, Float32Array>): Row[] {
  const two = heat.groups.length > 0;
  const sequence = two ? ["source_sequence"] : [];
  const rows: Row[] = [
    [...Object.keys(shared), "target", "target_token", "source", ...sequence, "source_token", ...Object.keys(values)],
  ];
  for (const [i, target] of heat.rows.entries()) {
    for (const [j, source] of heat.columns.entries()) {
      const of = two ? [groupAt(heat.groups, j)?.name ?? ""] : [];
      const k = placeOf(heat, { target: i, source: j });
      const pair = [i, target, j, ...of, source];
      rows.push([...Object.values(shared), ...pair, ...Object.values(values).map((map) => map[k])]);
    }
  }
  return rows;
}
