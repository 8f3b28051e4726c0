"""What some maps carry beside their numbers: routing of experts, grids of patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.results.axes import same
from normlens.scopes import layers_in_words

if TYPE_CHECKING:
    import pandas as pd


# Which experts each token of a text used, layer by layer, and with which weights.


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


# The grid of patches that an image model cuts a picture into, and the picture itself.


#: A token by its place, or by its name: "[CLS]", or "3,4" for a patch.
Token: TypeAlias = int | str

#: Pixels on the longer side of a picture that is kept with results.
LARGEST_PICTURE = 448


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """Which tokens are patches, and where: patch (r, c) is token ``first + r·columns + c``.

    Tokens before `first`, and any behind the grid, are [CLS], registers and the like.
    """

    rows: int
    columns: int
    first: int
    picture: NDArray[np.uint8] | None = None  # RGB (height, width, 3), what the patches cover

    def __post_init__(self) -> None:
        shape = None if self.picture is None else self.picture.shape
        if shape is not None and (len(shape) != 3 or shape[2] != 3 or 0 in shape):
            raise InputError(f"a picture is RGB, (height, width, 3), and not {shape}")

    def __len__(self) -> int:
        return self.rows * self.columns

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PatchGrid):
            return NotImplemented
        return self._sizes == other._sizes and same(self.picture, other.picture)

    __hash__ = None  # type: ignore[assignment]

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.rows, self.columns, self.first

    @property
    def tokens(self) -> range:
        """The places of the patches among all tokens."""
        return range(self.first, self.first + len(self))

    def labels(self) -> list[str]:
        """What the patches are called: row and column, counted from 1."""
        return [f"{r + 1},{c + 1}" for r in range(self.rows) for c in range(self.columns)]

    def place(self, token: int) -> tuple[int, int] | None:
        """The row and the column, from 0, of a token; None if it is no patch."""
        return divmod(token - self.first, self.columns) if token in self.tokens else None

    def token(self, row: int, column: int) -> int:
        """The token of a patch, by its row and column from 0."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise InputError(
                f"there is no patch ({row}, {column}); rows are 0 to {self.rows - 1} and columns 0 "
                f"to {self.columns - 1}"
            )
        return self.first + row * self.columns + column

    def named(self, token: Token, tokens: Sequence[str]) -> int:
        """The place of a token among `tokens`, which may be given by its name."""
        if isinstance(token, str):
            wanted = "".join(token.split())
            if wanted in tokens:
                return tokens.index(wanted)
            first, last = tokens[self.first], tokens[self.first + len(self) - 1]
            others = [name for place, name in enumerate(tokens) if place not in self.tokens]
            raise InputError(
                f"there is no token {token!r}; patches are {first} to {last} (row,column)"
                + (f", and beside them {', '.join(others)}" if others else "")
            )
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InputError(f'a token is its place or its name, such as "2,3", not {token!r}')
        if not -len(tokens) <= token < len(tokens):
            raise InputError(f"token {token} is out of range; there are 0 to {len(tokens) - 1}")
        return int(token) % len(tokens)

    def of(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """The values of the patches (row, column) among values of all tokens."""
        return values[self.first : self.first + len(self)].reshape(self.rows, self.columns)

    def among(self, places: Sequence[int]) -> PatchGrid | None:
        """The grid where only the tokens at `places` are left; None unless all patches are."""
        places = list(places)
        if self.first not in places:
            return None
        first = places.index(self.first)
        whole = places[first : first + len(self)] == list(self.tokens)
        return replace(self, first=first) if whole else None
