"""The labelled maps that a lens gives: arrays with tokens, layers and provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import analysis, store
from normlens.errors import InputError, UnknownScopeError
from normlens.scopes import resolve, resolve_all

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Correlations:
    """Spearman's ρ between all scopes, over the pairs that attention allows."""

    scopes: list[str]
    rho: NDArray[np.float64]  # [layer, scope, scope]


@dataclass(frozen=True, repr=False)
class Maps:
    """Attribution maps of one sequence; ``maps[scope]`` is an array [layer, target, source].

    Rows are outputs (targets), columns inputs (sources). Layers count from 0 here, as in arrays;
    pictures and the command line count from 1, as the papers do.
    """

    arrays: Mapping[str, NDArray]  # scope → [layer, target, source]
    tokens: list[str]
    layers: list[int]  # 0-based indices of the model's layers
    allowed: NDArray[np.bool_]  # [layer, target, source], pairs that attention allows
    completeness: float  # worst relative error of parts + bias against the real hidden states
    provenance: dict[str, Any] = field(default_factory=dict)
    mixing: Mapping[str, NDArray] = field(default_factory=dict)  # scope → [layer, target]
    heads: Mapping[str, NDArray] = field(
        default_factory=dict
    )  # scope → [layer, head, target, source]
    standard_error: Mapping[str, NDArray] = field(
        default_factory=dict
    )  # of each entry; Shapley only
    #: of the feed-forward block, on request: ff_output_norm and bypassed_norm [layer, target];
    #: ff_input_mean_abs, ff_output_mean_abs and gamma [layer, d]; special_dimensions [layer, k];
    #: ff_without_special [layer, target, source], its map without them
    statistics: Mapping[str, NDArray] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None  # word index of each token
    word_labels: list[str] = field(default_factory=list)
    text: str | tuple[str, str] | None = None
    correlations: Correlations | None = None  # where the lens was asked to rank the maps itself

    # Looking ------------------------------------------------------------------------------------

    @property
    def scopes(self) -> list[str]:
        """The scopes at hand, in the order of the layer's components."""
        return list(self.arrays)

    def __getitem__(self, scope: str) -> NDArray:
        return self.arrays[resolve(scope, self.scopes)]

    def __contains__(self, scope: str) -> bool:
        try:
            resolve(scope, self.scopes)
        except UnknownScopeError:
            return False
        return True

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        model = self.provenance.get("model", "?")
        return (
            f"Maps({model}: {len(self.tokens)} tokens, {len(self.layers)} layers, "
            f"{len(self.scopes)} scopes, completeness {self.completeness:.1e})"
        )

    # Measuring ----------------------------------------------------------------------------------

    def similarity(self, a: str, b: str) -> NDArray[np.float64]:
        """Spearman's ρ between two scopes, per layer, over the pairs that attention allows."""
        return analysis.spearman(self[a], self[b], self.allowed)

    def amplification(self, before: str, after: str, axis: str = "source") -> NDArray:
        """FF-amp: how much `after` strengthens each pair beside `before`, [layer, target, source].

        Each source's column is first made to sum to 1 (`axis` "target": each row; "none": neither).
        """
        return analysis.amplification(self[before], self[after], axis)

    def mixing_ratio(self, scope: str) -> NDArray:
        """‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖), [layer, target].

        Kobayashi et al. 2021, section 4: the norm of the other tokens' sum, not a sum of norms.
        """
        name = resolve(scope, self.scopes)
        if name not in self.mixing:
            raise InputError(
                "mixing ratios belong to tokens; take them before words() merges tokens or "
                "without_special_tokens() drops some"
            )
        return self.mixing[name]

    # Choosing and merging -----------------------------------------------------------------------

    def choose(
        self, layers: int | Iterable[int] | None = None, scopes: str | Iterable[str] | None = None
    ) -> Maps:
        """The same maps with some of their layers (from 0) and scopes only, in their order."""
        if layers is None:
            layers = self.layers
        wanted = [layers] if isinstance(layers, (int, np.integer)) else list(layers)
        for layer in wanted:
            if layer not in self.layers:
                raise InputError(
                    f"layer {layer!r} is not among these maps' layers (indices from 0): "
                    f"{', '.join(map(str, self.layers))}"
                )
        if not wanted:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        names = resolve_all(scopes, self.scopes)
        if not names:
            raise InputError("no scope is chosen; leave `scopes` out to take all")
        positions = [index for index, layer in enumerate(self.layers) if layer in wanted]

        def picked(group: Mapping[str, NDArray]) -> dict[str, NDArray]:
            return {name: group[name][positions] for name in names if name in group}

        return replace(
            self,
            arrays=picked(self.arrays),
            layers=[self.layers[position] for position in positions],
            allowed=self.allowed[positions],
            mixing=picked(self.mixing),
            heads=picked(self.heads),
            standard_error=picked(self.standard_error),
            statistics={name: array[positions] for name, array in self.statistics.items()},
            correlations=None,
        )

    def without_special_tokens(self) -> Maps:
        """The same maps without rows and columns of special tokens ([CLS], [SEP], <s>, …)."""
        keep = [index for index, special in enumerate(self.special) if not special]
        if not keep:
            raise InputError("every token of this sequence is a special token")
        index = np.array(keep)
        picked = self._map_arrays(lambda a: a[..., index[:, None], index])
        return replace(
            picked,
            mixing={scope: ratio[:, index] for scope, ratio in self.mixing.items()},
            statistics={},
            tokens=[self.tokens[i] for i in keep],
            token_ids=[self.token_ids[i] for i in keep] if self.token_ids else [],
            special=[False] * len(keep),
            token_words=None if self.token_words is None else [self.token_words[i] for i in keep],
        )

    def words(self) -> Maps:
        """Word-level maps: columns of a word summed, rows averaged. Special tokens stay."""
        if self.token_words is None:
            raise InputError(
                "words are known only for texts read by a fast tokenizer, not for input_ids; "
                "pass the text itself"
            )
        groups: dict[Any, list[int]] = {}
        for position, word in enumerate(self.token_words):
            groups.setdefault(("token", position) if word is None else word, []).append(position)
        members = list(groups.values())
        merged = self._map_arrays(lambda a: analysis.merge_words(a, members))
        labels = [
            self.tokens[group[0]] if isinstance(key, tuple) else self.word_labels[key]
            for key, group in groups.items()
        ]
        return replace(
            merged,
            tokens=labels,
            allowed=analysis.merge_words(self.allowed.astype(float), members) > 0,
            mixing={},
            standard_error={},
            statistics={},
            token_ids=[],
            special=[self.special[group[0]] for group in members],
            token_words=list(range(len(members))),
            word_labels=labels,
        )

    def _map_arrays(self, change: Callable[[NDArray], NDArray]) -> Maps:
        """The same maps with every [..., target, source] array changed."""
        return replace(
            self,
            arrays={scope: change(a) for scope, a in self.arrays.items()},
            heads={scope: change(a) for scope, a in self.heads.items()},
            standard_error={scope: change(a) for scope, a in self.standard_error.items()},
            allowed=change(self.allowed),
            correlations=None,
        )

    # Taking away --------------------------------------------------------------------------------

    def to_numpy(self) -> dict[str, NDArray]:
        """Every map by its scope, each [layer, target, source]."""
        return dict(self.arrays)

    def to_pandas(self) -> pd.DataFrame:
        """One row per scope, layer (from 0), target and source."""
        import pandas as pd

        n = len(self.tokens)
        layer, target, source = (
            axis.ravel()
            for axis in np.meshgrid(self.layers, np.arange(n), np.arange(n), indexing="ij")
        )
        labels = np.array(self.tokens, dtype=object)
        frames = [
            pd.DataFrame(
                {
                    "scope": scope,
                    "layer": layer,
                    "target": target,
                    "target_token": labels[target],
                    "source": source,
                    "source_token": labels[source],
                    "value": array.ravel(),
                }
            )
            for scope, array in self.arrays.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def to_bertviz(self, scope: str = "ATTN-N") -> tuple[torch.Tensor, ...]:
        """What ``bertviz.head_view(attention, tokens)`` takes: per layer a (1, heads, n, n) tensor.

        Head-level maps if the lens was asked for them, else the scope's map as a single head.
        """
        import torch

        name = resolve(scope, self.scopes)
        stacked = self.heads[name] if name in self.heads else self.arrays[name][:, None]
        return tuple(torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in stacked)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a safetensors file with JSON metadata; `normlens.open` reads it."""
        return store.save(self, path, overwrite=overwrite)

    def to_html(self, path: str | Path, **options: Any) -> Path:
        """Write the viewer with these maps as one HTML file; options of `normlens.viewer.to_html`.

        The file works from disk and needs no network.
        """
        from normlens.viewer import to_html

        return to_html(self, path, **options)

    def show(self, *others: Maps, **state: Any) -> Any:
        """The interactive viewer for a notebook cell; `others` are maps to compare with.

        ``maps.show(layer=3, scope="FF")`` opens it there (layers from 1, as in all pictures).
        """
        from normlens.viewer.widget import show

        return show([self, *others], **state)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.widget import mimebundle

        return mimebundle(self, **options)

    def plot(
        self, layer: int = 0, scopes: str | Sequence[str] | None = None, **options: Any
    ) -> Figure:
        """The scopes of one layer (index from 0) side by side, as a matplotlib figure."""
        from normlens.figures import plot_layer

        return plot_layer(self, layer, scopes, **options)
