"""Maps in the shapes that the viewer knows: layers that are alike, and one list of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.layers import layers_in_words

if TYPE_CHECKING:
    from normlens.results.maps import Maps


def of_like_layers(maps: Maps) -> list[Maps]:
    """The same maps, or one for each kind of layer where layers have different scopes."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for layer in maps.layers:
        scopes = tuple(scope for scope in maps.scopes if layer in maps.covered("arrays", scope))
        if scopes:  # a layer may have head-level maps alone
            kinds.setdefault(scopes, []).append(layer)
    if set(kinds) == {tuple(maps.scopes)}:
        return [maps]
    return [_named(maps.choose(layers, scopes)) for scopes, layers in kinds.items()]


def _named(maps: Maps) -> Maps:
    """The same maps with their layers in the name of their model."""
    model = f"{maps.provenance.get('model', 'model')} ({layers_in_words(maps.layers)})"
    return replace(maps, provenance={**maps.provenance, "model": model})


def square(maps: Maps) -> Maps:
    """The same maps with one list of tokens for rows and columns.

    Sources that are other tokens than the targets come first; their rows hold no allowed pair.
    Mixing ratios, head-level maps and standard errors are left out.
    """
    if maps.source_axis is None:
        return maps
    targets, sources = maps.targets, maps.sources
    place = _places(maps.is_same_token)  # of each target among all tokens
    added = [i for i in range(len(targets)) if place[i] >= len(sources)]
    size = len(sources) + len(added)
    words = None
    if targets.token_words is not None and sources.token_words is not None:
        first = len(sources.word_labels)
        behind = targets.take(added).token_words or []
        words = [*sources.token_words, *(None if w is None else first + w for w in behind)]

    def spread(array: NDArray[Any]) -> NDArray[Any]:
        whole = np.zeros((len(array), size, size), dtype=array.dtype)
        whole[:, place, : len(sources)] = array
        return whole

    flags = [axis.special or [False] * len(axis) for axis in (sources, targets)]
    return replace(
        maps,
        arrays={scope: spread(array) for scope, array in maps.arrays.items()},
        allowed=spread(maps.allowed),
        mixing={},
        heads={},
        standard_error={},
        statistics={},
        correlations=None,
        source_axis=None,
        same_token=None,
        raw_tokens=[*sources.raw_tokens, *targets.take(added).raw_tokens],
        token_ids=[],
        special=[*flags[0], *(flags[1][i] for i in added)],
        token_words=words,
        word_labels=[*sources.word_labels, *targets.word_labels],
    )


def _places(same_token: NDArray[np.bool_]) -> list[int]:
    """Where each target stands among the sources, or behind them if it is not among them."""
    places: list[int] = []
    behind = same_token.shape[1]
    for row in same_token:
        column = int(row.argmax())
        if row.any() and column not in places:
            places.append(column)
        else:
            places.append(behind)
            behind += 1
    return places
