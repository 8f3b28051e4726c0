"""One sequence's results as maps, with the labels that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.analysing.collect import Collected
from normlens.analysing.columns import CORRELATIONS, ROUTING
from normlens.results.maps import Maps
from normlens.results.routing import Routing
from normlens.results.tokens import TokenAxis
from normlens.text import Encoded, Text


def packed(
    sequence: Encoded,
    index: int,
    results: Mapping[str, dict[str, NDArray[Any]]],
    allowed: NDArray[np.bool_],
    collected: Collected,
    provenance: dict[str, Any],
    text: Text | None = None,
) -> Maps:
    """The maps of a batch's sequence `index`, whose `results` are by group and name.

    `allowed` are its pairs; `text` is both texts where the sequence is one of two.
    """
    arrays = results.get("arrays", {})
    return Maps(
        arrays={scope: arrays[scope] for scope in collected.scopes if scope in arrays},
        raw_tokens=sequence.tokens,
        layers=collected.layers,
        allowed=allowed,
        completeness=provenance["completeness"],
        provenance=provenance,
        mixing=results.get("mixing", {}),
        heads=results.get("heads", {}),
        standard_error=results.get("standard_error", {}),
        statistics=results.get("statistics", {}),
        correlations=collected.correlations(results.get(CORRELATIONS, {}).get(CORRELATIONS)),
        token_ids=sequence.ids,
        special=sequence.special,
        token_words=sequence.words,
        word_labels=sequence.word_labels,
        text=sequence.text if text is None else text,
        coverage=collected.coverage(),
        routing=_routing(sequence, results.get(ROUTING, {}), collected),
        grid=sequence.grid,
        **_columns(sequence, collected.columns.other_tokens(index)),
    )


def _routing(
    sequence: Encoded, arrays: Mapping[str, NDArray[Any]], collected: Collected
) -> Routing | None:
    """The experts that a sequence's tokens used, in the layers of its maps."""
    if not arrays:
        return None
    layers = collected.covered[ROUTING, "experts"]
    tokens = token_axis(sequence).tokens
    shared = arrays.get("shared")
    routing = Routing(
        layers, arrays["experts"], arrays["weights"], collected.experts, tokens, shared
    )
    return routing.of_layers(collected.layers)


def token_axis(sequence: Encoded) -> TokenAxis:
    """The tokens of a sequence as labels of an axis."""
    return TokenAxis(
        sequence.tokens, sequence.ids, sequence.special, sequence.words, sequence.word_labels
    )


def _columns(sequence: Encoded, others: TokenAxis | None) -> dict[str, Any]:
    """The labels of columns that are another sequence's tokens, then the text's own."""
    if others is None:
        return {}
    m, n = len(others), len(sequence)
    return {
        "source_axis": others.followed_by(token_axis(sequence)),
        "same_token": np.eye(n, m + n, k=m, dtype=bool),
    }
