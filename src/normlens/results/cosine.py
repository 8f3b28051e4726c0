"""A cosine of two texts, taken apart: which tokens made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.measures import sum_words
from normlens.options import cost_in_words
from normlens.results import store
from normlens.results.axes import TokenAxis, same_fields
from normlens.results.conversions import import_xarray
from normlens.results.formats import saved_cosine

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

    from normlens.viewer.pages import CosineState

#: The parts of a cosine that no pair of tokens owns.
REMAINDER = ("tokens of A × bias of B", "bias of A × tokens of B", "bias of A × bias of B")


@dataclass(frozen=True)
class Margins:
    """What each token has of the cosine, with and without the part of the other text's biases."""

    a: NDArray[np.float64]  # u_k · v, with all of text B
    b: NDArray[np.float64]  # u · v_l, with all of text A
    a_without_bias: NDArray[np.float64]  # Σ_l u_k · v_l, with the tokens of B alone
    b_without_bias: NDArray[np.float64]  # Σ_k u_k · v_l, with the tokens of A alone


@dataclass(frozen=True, eq=False)
class Cosine:
    """The cosine of two texts' vectors, shared out among pairs of their tokens.

    With u = Σ_k u_k + b_u and v = Σ_l v_l + b_v, every part is divided by ‖u‖ ‖v‖, so that
    ``matrix.sum() + sum(remainder.values()) == value``, to `completeness`. Made by `Lens.cosine`.
    """

    value: float  # the cosine of the model's own vectors
    matrix: NDArray[np.float64]  # [token of A, token of B], u_k · v_l
    a_with_bias: NDArray[np.float64]  # [token of A], u_k · b_v
    b_with_bias: NDArray[np.float64]  # [token of B], b_u · v_l
    bias: float  # b_u · b_v
    a: TokenAxis  # the first text's tokens
    b: TokenAxis
    completeness: float  # error of the parts' sum, where 1 is the largest cosine
    provenance: dict[str, Any] = field(default_factory=dict)
    text_a: str | None = None
    text_b: str | None = None

    # What it says --------------------------------------------------------------------------------

    @property
    def tokens_a(self) -> list[str]:
        """The tokens of the first text."""
        return self.a.tokens

    @property
    def tokens_b(self) -> list[str]:
        """The tokens of the second text."""
        return self.b.tokens

    @property
    def note(self) -> str | None:
        """What to know about how the texts' vectors are made, if anything."""
        note = self.provenance.get("note")
        return None if note is None else str(note)

    @property
    def margins(self) -> Margins:
        """What each token has of the cosine."""
        a, b = self.matrix.sum(1), self.matrix.sum(0)
        return Margins(a + self.a_with_bias, b + self.b_with_bias, a, b)

    @property
    def remainder(self) -> dict[str, float]:
        """What no pair of tokens owns, by its parts."""
        values = (float(self.a_with_bias.sum()), float(self.b_with_bias.sum()), self.bias)
        return dict(zip(REMAINDER, values, strict=True))

    def top(self, count: int = 10) -> pd.DataFrame:
        """The pairs of tokens with the largest parts, whatever their sign."""
        frame = self.to_pandas()
        order = np.argsort(-np.abs(self.matrix).ravel(), kind="stable")[:count]
        return frame.iloc[order].reset_index(drop=True)

    def words(self) -> Cosine:
        """The same by words: the parts of a word's tokens are summed."""
        of_a, of_b = self.a.word_groups(), self.b.word_groups()
        return replace(
            self,
            matrix=sum_words(sum_words(self.matrix, of_b).T, of_a).T,
            a_with_bias=sum_words(self.a_with_bias, of_a),
            b_with_bias=sum_words(self.b_with_bias, of_b),
            a=self.a.words(),
            b=self.b.words(),
        )

    # Taking away ---------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row per pair of tokens: their places, the tokens, and their part of the cosine."""
        import pandas as pd

        rows, columns = (axis.ravel() for axis in np.indices(self.matrix.shape))
        labels = [np.array(tokens, dtype=object) for tokens in (self.tokens_a, self.tokens_b)]
        return pd.DataFrame(
            {
                "a": rows,
                "a_token": labels[0][rows],
                "b": columns,
                "b_token": labels[1][columns],
                "value": self.matrix.ravel(),
            }
        )

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named and its tokens as coordinates."""
        return import_xarray().Dataset(
            {
                "matrix": (("a", "b"), self.matrix),
                "a_with_bias": (("a",), self.a_with_bias),
                "b_with_bias": (("b",), self.b_with_bias),
                "bias": ((), self.bias),
            },
            coords={"a_token": ("a", self.tokens_a), "b_token": ("b", self.tokens_b)},
            attrs={
                "model": self.provenance.get("model"),
                "value": self.value,
                "completeness": self.completeness,
            },
        )

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write a safetensors file with JSON metadata; `normlens.open` reads it.

        Files that are there already are treated as `Maps.save` treats them.
        """
        return store.write(*saved_cosine(self), path, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> Cosine:
        """Read a cosine that `save` wrote."""
        return store.open_as(Cosine, path)

    def plot(
        self,
        *,
        colour: str = "sqrt",
        cmap: str = "RdBu_r",
        max_label: int = 14,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """Both texts' tokens, and the matrix of their pairs; see `normlens.figures.plot_cosine`."""
        from normlens.figures import plot_cosine

        return plot_cosine(self, colour=colour, cmap=cmap, max_label=max_label, ax=ax)

    # Looking at it -------------------------------------------------------------------------------

    def to_html(
        self, path: str | Path, *, largest: float | None = 60.0, overwrite: bool | None = None
    ) -> Path:
        """Write one HTML file to look at it in, which needs no network."""
        from normlens.viewer import cosine_html

        return cosine_html(self, path, largest=largest, overwrite=overwrite)

    def show(self, **state: Unpack[CosineState]) -> object:
        """The interactive view for a notebook cell; ``pair.show(view="matrix")`` opens it there."""
        from normlens.viewer.notebook import cosine_notebook

        return cosine_notebook(self, state).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.notebook import cosine_notebook

        return cosine_notebook(self, {}).mimebundle(repr(self), **options)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same numbers and labels; provenance does not count."""
        if not isinstance(other, Cosine):
            return NotImplemented
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        model = self.provenance.get("model", "?")
        note = f", {self.note}" if self.note else ""
        cost = cost_in_words(str(self.provenance.get("dtype")))
        return (
            f"Cosine({model}: {self.value:.4f} = {float(self.matrix.sum()):.4f} from "
            f"{_size(self.matrix.shape)} pairs of tokens + {sum(self.remainder.values()):.4f} from "
            f"biases, completeness {self.completeness:.1e}{cost}{note})"
        )


def _size(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
