"""Which experts each token of a text used, layer by layer, and with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.layers import layers_in_words

if TYPE_CHECKING:
    import pandas as pd

#: What tables call an expert that all tokens use.
SHARED = "shared"


@dataclass(frozen=True, eq=False)
class Routing:
    """The routing that the model really used, in the layers that have experts."""

    layers: list[int]  # indices of the model's layers, from 0
    experts: NDArray[np.integer[Any]]  # [layer, token, place], numbers of experts, from 0
    weights: NDArray[np.floating[Any]]  # [layer, token, place]
    count: int  # experts of a layer, without a shared one
    tokens: list[str]  # as people read them
    shared: NDArray[np.floating[Any]] | None = None  # [layer, token]; None: no expert is shared

    def __post_init__(self) -> None:
        size = len(self.layers), len(self.tokens)
        if self.experts.shape[:2] != size or self.experts.shape != self.weights.shape:
            raise InputError(
                f"experts of shape {self.experts.shape} and weights of shape {self.weights.shape} "
                f"for {size[0]} layers and {size[1]} tokens"
            )
        if self.shared is not None and self.shared.shape != size:
            raise InputError(f"weights of a shared expert have shape {self.shared.shape}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Routing):
            return NotImplemented
        alike = (self.layers, self.count, self.tokens) == (other.layers, other.count, other.tokens)
        arrays = zip(self._arrays, other._arrays, strict=True)
        return alike and all(np.array_equal(a, b) for a, b in arrays)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        more = "" if self.shared is None else " and a shared one"
        return (
            f"Routing({len(self.tokens)} tokens, {layers_in_words(self.layers)}: "
            f"{self.experts.shape[-1]} of {self.count} experts{more})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per layer, token and expert that it used, with the weight.

        `position` and `layer` count from 0; a shared expert is called "shared".
        """
        import pandas as pd

        names: NDArray[Any] = self.experts.astype(object)
        weights = self.weights
        if self.shared is not None:
            names = np.concatenate([names, np.full_like(names[..., :1], SHARED)], axis=-1)
            weights = np.concatenate([weights, self.shared[..., None]], axis=-1)
        layer, position, _ = np.indices(names.shape)
        return pd.DataFrame(
            {
                "layer": np.array(self.layers)[layer.ravel()],
                "position": position.ravel(),
                "token": np.array(self.tokens, dtype=object)[position.ravel()],
                "expert": names.ravel(),
                "weight": weights.ravel(),
            }
        )

    def of_layers(self, layers: Sequence[int]) -> Routing | None:
        """The routing of some layers; None if none of them has experts."""
        here = [layer for layer in self.layers if layer in layers]
        places = [self.layers.index(layer) for layer in here]
        if not here:
            return None
        shared = None if self.shared is None else self.shared[places]
        return replace(
            self,
            layers=here,
            experts=self.experts[places],
            weights=self.weights[places],
            shared=shared,
        )

    def of_tokens(self, tokens: Sequence[int]) -> Routing:
        """The routing of some tokens, in the order given."""
        places = list(tokens)
        return replace(
            self,
            experts=self.experts[:, places],
            weights=self.weights[:, places],
            tokens=[self.tokens[place] for place in places],
            shared=None if self.shared is None else self.shared[:, places],
        )

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        shared = np.empty(0) if self.shared is None else self.shared
        return self.experts, self.weights, shared
