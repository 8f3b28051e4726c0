"""What maps measure: similarity, amplification, mixing, the strongest pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens import analysis
from normlens.errors import InputError
from normlens.results.axes import LayerTarget, LayerTargetSource, PerLayer
from normlens.results.choosing import ChoosableMaps
from normlens.scopes import chains, components_of, feed_forward_pairs, resolve

if TYPE_CHECKING:
    import pandas as pd


class MeasurableMaps(ChoosableMaps):
    """Maps with the papers' measures, whose formulas are in `normlens.analysis`.

    A measure of two scopes has one entry for each of `layers`.
    """

    def similarity(self, a: str, b: str) -> PerLayer:
        """Spearman's ρ between two scopes, per layer, over the pairs that attention allows.

        NaN in layers that lack one of them.
        """
        return self._per_layer(analysis.spearman, a, b)

    def amplification(self, before: str, after: str, axis: str = "source") -> LayerTargetSource:
        """FF-amp: how much `after` strengthens each pair beside `before`.

        Each source's column is first made to sum to 1 (`axis` "target": each row; "none": neither).
        NaN in layers that lack one of them.
        """

        def measure(first: Any, last: Any, _: Any) -> Any:
            return analysis.amplification(first, last, axis)

        return self._per_layer(measure, before, after)

    def _per_layer(self, measure: Callable[[Any, Any, Any], Any], a: str, b: str) -> Any:
        """A measure of two scopes for each of `layers`, NaN where a layer lacks one of them."""
        layers = self.layers_of(a, b)
        allowed = self.pairs_of(resolve(a, self.scopes), resolve(b, self.scopes))
        if layers == self.layers:
            return measure(self[a], self[b], allowed)
        if not layers:
            raise InputError(f"no layer of these maps has both {a} and {b}; its layers differ")
        places = [self.layers.index(layer) for layer in layers]
        first, last = (np.stack([self.at(name, layer) for layer in layers]) for name in (a, b))
        values = measure(first, last, allowed[places])
        whole = np.full((len(self.layers), *values.shape[1:]), np.nan, dtype=values.dtype)
        whole[places] = values
        return whole

    def mixing_ratio(self, scope: str) -> LayerTarget:
        """‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖).

        Kobayashi et al. 2021, section 4: the norm of the other tokens' sum, not a sum of norms.
        """
        name = resolve(scope, self.scopes)
        if name not in self.mixing:
            raise InputError(
                "mixing ratios belong to tokens; take them before words() merges tokens or "
                "without_special_tokens() drops some"
            )
        return self.mixing[name]

    def top_pairs(
        self,
        scope: str | None = None,
        *,
        before: str | None = None,
        count: int = 5,
        axis: str = "source",
    ) -> pd.DataFrame:
        """The pairs of different tokens with the largest values, `count` per layer, best first.

        With `before` the values are FF-amp from that scope to `scope`; without either scope, those
        of the feed-forward block. Of an encoder–decoder the column `source_sequence` says whose
        token a source is; `source` counts all columns of the map.
        """
        import pandas as pd

        if scope is None:
            before, scope = self.feed_forward_pair()
        measured = [scope] if before is None else [before, scope]
        values = self.over_layers("arrays", resolve(scope, self.scopes))
        if before is not None:
            values = self.amplification(before, scope, axis)
        rows = []
        for layer in self.layers_of(*measured):
            place = self.layers.index(layer)
            pairs, _ = analysis.strongest_pairs(
                values[place], self.allowed[place], count, self.is_same_token
            )
            rows += [
                (layer, pair.source, self.source_tokens[pair.source], pair.target,
                 self.tokens[pair.target], pair.value)
                for pair in pairs
            ]  # fmt: skip
        columns = ["layer", "source", "source_token", "target", "target_token", "value"]
        table = pd.DataFrame(rows, columns=columns)
        if labels := self.table_sequences:
            table.insert(2, "source_sequence", [labels[place] for place in table["source"]])
        return table

    def feed_forward_pairs(self) -> list[tuple[str, str]]:
        """The scopes before and behind the feed-forward block of each kind of layer.

        A block beside the attention reads its own token alone and amplifies no pair.
        """
        beside = "∥" in self.provenance.get("components", "")
        return [
            (before, after)
            for before, after in feed_forward_pairs(self.scopes)
            if not beside or "RES" in components_of(before)
        ]

    def feed_forward_pair(self) -> tuple[str, str]:
        """The scopes before and behind the feed-forward block, where all layers have the same."""
        pairs = self.feed_forward_pairs()
        if len(pairs) > 1:
            listed = " and ".join(f"{before} → {after}" for before, after in pairs)
            if len(chains(self.scopes)) == 1:
                raise InputError(
                    f"each layer has several feed-forward blocks ({listed}); name two scopes"
                )
            raise InputError(f"these layers differ ({listed}); name two scopes, or choose layers")
        if not pairs:
            raise InputError(
                "these maps have no scopes just before and behind a feed-forward block; name two "
                f"of {', '.join(self.scopes)}"
            )
        return pairs[0]
