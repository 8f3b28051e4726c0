"""The tables of an evaluation, which need no model to be read."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from normlens.corpus.measures.base import LABEL, WHOSE

# The tables of an evaluation, which need no model to be read.
#
# `examples` has a row for each text: the question about it and what the model says of it.
# `correct` is by the label, or by which of two given words is preferred. `attributions` has a row
# for each method and token; `word` numbers the words whose tokens' scores are summed, and
# `evidence` marks the word that must decide. `removals` has a row for each variant of a text that
# a protocol ran: `first` says which tokens went first, the most or the least important, `share`
# which share of the ordinary tokens that was (for sufficiency, which share of the most important
# ones stayed), and `removed` how many are gone. `faithfulness` has a protocol's value for each
# method and text, null where the text says nothing. `method_passes` counts the rows that a method
# passed through the model.


EXAMPLES, ATTRIBUTIONS, REMOVALS = "examples", "attributions", "removals"
FAITHFULNESS, PASSES = "faithfulness", "method_passes"

#: Which tokens go first.
MOST, LEAST = "most", "least"

METHOD = pa.field("method", LABEL)
_PROTOCOL = pa.field("protocol", LABEL)
_FIRST = pa.field("first", LABEL)
_SCORES = (
    pa.field("score", pa.float64()),
    pa.field("probability", pa.float64()),  # of the target; null for a cosine
    pa.field("correct", pa.bool_()),
)
TABLES: Mapping[str, pa.Schema] = {
    EXAMPLES: pa.schema(
        [
            *WHOSE,
            pa.field("tokens", pa.int32()),
            pa.field("ordinary", pa.int32()),  # tokens that are not special
            pa.field("target_id", pa.int32()),
            pa.field("target", pa.string()),
            pa.field("contrast_id", pa.int32()),
            pa.field("contrast", pa.string()),
            pa.field("label", pa.string()),
            pa.field("evidence", pa.string()),
            *_SCORES,
        ]
    ),
    ATTRIBUTIONS: pa.schema(
        [
            *WHOSE,
            METHOD,
            pa.field("position", pa.int32()),
            pa.field("token", LABEL),
            pa.field("ordinary", pa.bool_()),
            pa.field("word", pa.int32()),  # null: of no word
            pa.field("evidence", pa.bool_()),  # null: none is given
            pa.field("score", pa.float64()),
        ]
    ),
    REMOVALS: pa.schema(
        [
            *WHOSE,
            _PROTOCOL,
            METHOD,
            _FIRST,
            pa.field("share", pa.float64()),
            pa.field("removed", pa.int32()),
            *_SCORES,
        ]
    ),
    FAITHFULNESS: pa.schema([*WHOSE, _PROTOCOL, METHOD, _FIRST, pa.field("value", pa.float64())]),
    PASSES: pa.schema(
        [*WHOSE, METHOD, pa.field("forward", pa.float64()), pa.field("backward", pa.float64())]
    ),
}
ORDER: Mapping[str, tuple[str, ...]] = {
    EXAMPLES: ("index",),
    ATTRIBUTIONS: ("index", "method", "position"),
    REMOVALS: ("index", "protocol", "method", "first", "share"),
    FAITHFULNESS: ("index", "protocol", "method", "first"),
    PASSES: ("index", "method"),
}
