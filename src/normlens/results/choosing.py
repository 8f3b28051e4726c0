"""Choosing layers, scopes and tokens of maps, and merging tokens into words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from normlens import analysis
from normlens.errors import InputError, check_choice
from normlens.results.axes import GROUPS, Axes, axes_of, take
from normlens.results.sequences import OTHER_SEQUENCE, OWN_SEQUENCE, SequencedMaps
from normlens.results.tokens import TokenAxis
from normlens.scopes import resolve_all

M = TypeVar("M", bound="ChoosableMaps")


class ChoosableMaps(SequencedMaps):
    """Maps that can be cut down and merged; every array and label follows."""

    def choose(
        self: M,
        layers: int | Iterable[int] | None = None,
        scopes: str | Iterable[str] | None = None,
    ) -> M:
        """The same maps with some of their layers and scopes only, in their order.

        Layers are the model's, from 0; negative ones count from the end of those at hand. Where
        layers differ, a scope covers those of them that have it; a scope that is asked for by name
        and that none of them has is an error. An encoder's maps beside these stay as they are.
        """
        wanted = self.wanted_layers(layers)
        names = resolve_all(scopes, self.scopes)
        if not names:
            raise InputError("no scope is chosen; leave `scopes` out to take all")
        for name in [] if scopes is None or scopes == "all" else names:
            if not set(wanted) & set(self.layers_of(name)):
                raise self.lacking(name, wanted)
        # Single heads of the attention to another sequence are called CROSS-N.
        heads = {"CROSS-N"} if any(name.endswith("CROSS-N") for name in names) else set()
        kept: dict[str, Any] = {
            group: {
                name: arrays[name]  # of a file nothing else is read
                for name in arrays
                if name in names or (group == "heads" and name in heads)
            }
            for group, arrays in self.groups.items()
            if group != "statistics"
        }
        return replace(self, **kept)._of_layers(wanted)

    def sources_of(self: M, sequence: str) -> M:
        """The same maps with the columns of one sequence only: "encoder" or "decoder"."""
        check_choice(sequence, (OTHER_SEQUENCE, OWN_SEQUENCE), "sequence")
        sequences = self.source_sequences
        if not sequences:
            raise InputError("the sources of these maps are one sequence, the targets' own")
        places = [place for place, name in enumerate(sequences) if name == sequence]
        return self._of_tokens(list(range(len(self.targets))), places)

    def without_special_tokens(self: M) -> M:
        """The same maps without rows and columns of special tokens ([CLS], [SEP], <s>, …)."""
        if not self.targets.ordinary or not self.sources.ordinary:
            raise InputError("every token of this sequence is a special token")
        encoder = None if self.encoder is None else self.encoder.without_special_tokens()
        # Means over all tokens and special dimensions would no longer be those of what is left.
        left = replace(self, statistics={}, encoder=encoder)
        return left._of_tokens(self.targets.ordinary, self.sources.ordinary)

    def words(self: M) -> M:
        """Word-level maps: columns of a word summed, rows averaged. Special tokens stay."""
        targets, sources = self.targets.word_groups(), self.sources.word_groups()

        def merged(array: NDArray[Any]) -> NDArray[Any]:
            return analysis.merge_words(array, targets, sources)

        def any_merged(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
            return merged(mask.astype(float)) > 0

        # Norms of sums, spreads, statistics and experts of tokens say nothing of words.
        encoder = None if self.encoder is None else self.encoder.words()
        alone = replace(
            self, mixing={}, standard_error={}, statistics={}, encoder=encoder, routing=None
        )
        return alone._changed(
            lambda array, _: merged(array),
            allowed=any_merged(self.allowed),
            same_token=None if self.same_token is None else any_merged(self.same_token),
            **_labels(self.targets.words()),
            source_axis=None if self.source_axis is None else self.source_axis.words(),
        )

    def _of_layers(self: M, layers: list[int]) -> M:
        """Some of the layers. A scope that none of them has is left out, and so is a layer
        that has none of the arrays.
        """
        groups: dict[str, Any] = {group: {} for group in GROUPS}
        kept: dict[str, list[int]] = {}
        for group, arrays in self.groups.items():
            for name, array in arrays.items():
                covered = self.covered(group, name)
                if here := [layer for layer in layers if layer in covered]:
                    places = np.array([covered.index(layer) for layer in here])
                    groups[group][name] = np.take(array, places, axis=0)
                    kept[f"{group}/{name}"] = here
        left = [layer for layer in layers if any(layer in here for here in kept.values())]
        places = np.array([self.layers.index(layer) for layer in left])
        return replace(
            self,
            correlations=None,
            layers=left,
            allowed=np.take(self.allowed, places, axis=0),
            coverage={name: here for name, here in kept.items() if here != left},
            routing=None if self.routing is None else self.routing.of_layers(left),
            **groups,
        )

    def _of_tokens(self: M, targets: list[int], sources: list[int]) -> M:
        """Some of the rows and columns."""
        indices = {"target": np.array(targets), "source": np.array(sources)}
        same, axis = self.same_token, self.source_axis
        return self._changed(
            lambda array, axes: take(array, axes, indices),
            allowed=take(self.allowed, ("layer", "target", "source"), indices),
            same_token=None if same is None else take(same, ("target", "source"), indices),
            **_labels(self.targets.take(targets)),
            routing=None if self.routing is None else self.routing.of_tokens(targets),
            source_axis=None if axis is None else axis.take(sources),
            grid=None if self.grid is None else self.grid.among(targets),
        )

    def _changed(self: M, change: Callable[[NDArray[Any], Axes], NDArray[Any]], **labels: Any) -> M:
        """The same maps with every array changed, and labels that fit them."""
        groups: dict[str, Any] = {
            group: {name: change(array, axes_of(group, name)) for name, array in arrays.items()}
            for group, arrays in self.groups.items()
        }
        return replace(self, correlations=None, **groups, **labels)


def _labels(axis: TokenAxis) -> dict[str, Any]:
    """The fields of maps that label their targets."""
    return {
        "raw_tokens": axis.raw_tokens,
        "token_ids": axis.token_ids,
        "special": axis.special,
        "token_words": axis.token_words,
        "word_labels": axis.word_labels,
    }
