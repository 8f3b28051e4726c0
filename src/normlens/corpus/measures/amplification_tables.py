"""The tables of FF-amp: their columns, their order, and how shards become one table."""

from __future__ import annotations

import pyarrow as pa

from normlens.corpus.measures import reservoir
from normlens.corpus.measures.columns import EXACT, LABEL, WHOSE, count, sums_sql, total

PAIRS, DISTANCE, SAMPLE = "amplification_pairs", "amplification_distance", "amplification_sample"
_SCOPES = (
    pa.field("before", LABEL),
    pa.field("after", LABEL),
    pa.field("layer", pa.int32()),  # from 0
)
TABLES = {
    PAIRS: pa.schema(
        [
            *_SCOPES,
            pa.field("relation", LABEL),
            pa.field("source_id", pa.int32()),
            pa.field("target_id", pa.int32()),
            pa.field("source_token", LABEL),
            pa.field("target_token", LABEL),
            pa.field("count", pa.int64()),
            pa.field("sum_before", EXACT),
            pa.field("sum_after", EXACT),
            pa.field("sum_distance", pa.int64()),
        ]
    ),
    DISTANCE: pa.schema(
        [
            *WHOSE,
            *_SCOPES,
            pa.field("relation", LABEL),
            pa.field("same_subword", pa.bool_()),
            pa.field("distance", pa.int32()),
            pa.field("count", pa.int64()),
            pa.field("sum", pa.float64()),
            pa.field("sum_squares", pa.float64()),
        ]
    ),
    SAMPLE: pa.schema(
        [
            *_SCOPES,
            pa.field("relation", LABEL),
            pa.field("same_subword", pa.bool_()),
            pa.field("distance", pa.int32()),
            pa.field("index", pa.int64()),
            pa.field("sequence", LABEL),
            pa.field("target", pa.int32()),
            pa.field("source", pa.int32()),
            pa.field("score", pa.float64()),
            pa.field("priority", pa.uint64()),
        ]
    ),
}
PAIR_KEYS = TABLES[PAIRS].names[:8]
PAIR_SUMS = ("count", "sum_before", "sum_after", "sum_distance")

_WHERE = ("before", "after", "layer", "relation")
ORDER = {
    PAIRS: (*_WHERE, "source_id", "target_id"),
    DISTANCE: ("index", *_WHERE, "same_subword", "distance"),
    SAMPLE: (*_WHERE, "priority", "index", "target", "source"),
}


#: What a pair of subwords is counted by, whatever the relations of its occurrences.
_PAIR = '"before", "after", "layer", "source_id", "target_id"'


def merging_sql(keep: int, keep_other: int, least: int | None = None) -> dict[str, str]:
    """Write the SQL that merges the shards' sums, and their samples by the sizes of the strata.

    Pairs of subwords that occur less often than `least` times, in all relations together, are left
    out.
    """
    order = ", ".join(f'"{name}"' for name in ORDER[SAMPLE])
    return {
        PAIRS: sums_sql(
            PAIR_KEYS,
            {
                "count": count(),
                "sum": "CAST(sum(sum_after) - sum(sum_before) AS DOUBLE)",
                "sum_before": total("sum_before"),
                "sum_after": total("sum_after"),
                "sum_distance": count("sum_distance"),
            },
            qualify=""
            if least is None
            else f'sum(sum("count")) OVER (PARTITION BY {_PAIR}) >= {least}',
        ),
        SAMPLE: (
            # Whatever columns there are: an older run has fewer.
            "SELECT * FROM parts QUALIFY row_number() OVER ("
            f"PARTITION BY before, after, layer, relation, {reservoir.strata_sql()} "
            'ORDER BY priority, "index", target, source) '
            f"<= CASE WHEN relation IN {reservoir.UNRELATED} THEN {keep_other} "
            f"ELSE {keep} END ORDER BY {order}"
        ),
    }
