"""The tables of an alignment: links and counts of every sentence pair, and its texts."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from normlens.corpus.measures.base import LABEL, WHOSE

ALIGNMENT = pa.schema(
    [
        *WHOSE,
        pa.field("layer", pa.int32()),  # from 0; null: the whole model (EXPLAIN)
        pa.field("scope", LABEL),
        pa.field("way", LABEL),
        pa.field("head", pa.int32()),  # from 0; null: all heads together
        pa.field("alignment", pa.string()),  # Pharaoh's format, words from 0
        # |A∩S|, |A∩P|, |A| and |S|; without gold links only |A|
        pa.field("sure_hits", pa.int32()),
        pa.field("possible_hits", pa.int32()),
        pa.field("links", pa.int32()),
        pa.field("sure", pa.int32()),
    ]
)
TEXTS = pa.schema(
    [
        *WHOSE,
        pa.field("source", pa.string()),  # words with spaces between them
        pa.field("target", pa.string()),
        pa.field("generated", pa.bool_()),
        pa.field("gold_sure", pa.string()),  # as `alignment`; null without gold links
        pa.field("gold_possible", pa.string()),
        pa.field("completeness", pa.float64()),
    ]
)
TABLES: Mapping[str, pa.Schema] = {"alignment": ALIGNMENT, "alignment_texts": TEXTS}
ORDER: Mapping[str, tuple[str, ...]] = {
    "alignment": ("index", "layer", "scope", "way", "head"),
    "alignment_texts": ("index",),
}
COUNTS = ("sure_hits", "possible_hits", "links", "sure")
