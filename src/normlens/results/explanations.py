"""Explanations of each next token of a text, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from normlens.results import conversions, explanation_file, store
from normlens.results.explanation import Explanation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

    from normlens.viewer.state import ExplanationState


@dataclass(frozen=True)
class Explanations(Sequence[Explanation]):
    """What made each token of a text likely: one explanation per predicted token."""

    explanations: list[Explanation]

    @overload
    def __getitem__(self, index: int) -> Explanation: ...

    @overload
    def __getitem__(self, index: slice) -> list[Explanation]: ...

    def __getitem__(self, index: int | slice) -> Explanation | list[Explanation]:
        return self.explanations[index]

    def __len__(self) -> int:
        return len(self.explanations)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    @property
    def contributions(self) -> NDArray[np.floating]:
        """[predicted token, source]: row t is about the token behind position t.

        Of an encoder–decoder, sources are the source's tokens and then the target's.
        """
        return np.stack([each.contributions for each in self.explanations])

    @property
    def values(self) -> NDArray[np.floating]:
        """The scores that are explained."""
        return np.array([each.value for each in self.explanations])

    @property
    def tokens(self) -> list[str]:
        """The text's tokens, the sources."""
        return self.explanations[0].tokens

    @property
    def predicted(self) -> list[str]:
        """The tokens that are explained."""
        return [str(each.target) for each in self.explanations]

    @property
    def completeness(self) -> float:
        """The worst of all."""
        return max(each.completeness for each in self.explanations)

    def to_pandas(self) -> pd.DataFrame:
        """One row per predicted token and source."""
        import pandas as pd

        frames = [
            each.to_pandas().assign(predicted=place + 1, predicted_token=each.target)
            for place, each in enumerate(self.explanations)
        ]
        return pd.concat(frames, ignore_index=True)

    @property
    def has_two_sequences(self) -> bool:
        """Whether they are of the tokens of an encoder–decoder's target."""
        return self.explanations[0].has_two_sequences

    def shares(self) -> pd.DataFrame:
        """How much of each token's score an encoder–decoder's source supplies, and its prefix.

        A row per generated token: Σ of the source's contributions, of the prefix's, and the biases;
        `source_share` is ``|source| / (|source| + |prefix|)``, `source_share_absolute` is
        ``Σ|c|`` of the source's tokens over that of all tokens.
        """
        return conversions.shares_to_pandas(self.explanations)

    def words(self) -> Explanations:
        """The same by words of the text: contributions of a word's tokens are summed."""
        return Explanations([each.words() for each in self.explanations])

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write one safetensors file with JSON metadata; `normlens.open` reads it.

        Files that are there already are treated as `Maps.save` treats them.
        """
        saved = explanation_file.saved_several(self.explanations)
        return store.write(*saved, path, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> Explanations:
        """Read explanations that `save` wrote."""
        return store.open_as(Explanations, path)

    def plot(
        self,
        *,
        colour: str = "sqrt",
        cmap: str = "RdBu_r",
        max_label: int = 14,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """The matrix [predicted token, source]; see `normlens.figures.plot_explanations`."""
        from normlens.figures import plot_explanations

        return plot_explanations(self, colour=colour, cmap=cmap, max_label=max_label, ax=ax)

    def plot_shares(self, *, max_label: int = 24, ax: PlotAxes | None = None) -> Figure:
        """What source and prefix supply of each token's score; see `figures.plot_shares`."""
        from normlens.figures import plot_shares

        return plot_shares(self, max_label=max_label, ax=ax)

    def to_html(
        self, path: str | Path, *, largest: float | None = 60.0, overwrite: bool | None = None
    ) -> Path:
        """Write one HTML file with all of them to choose from; see `Explanation.to_html`."""
        from normlens.viewer import explanation_html

        return explanation_html(self, path, largest=largest, overwrite=overwrite)

    def show(self, **state: Unpack[ExplanationState]) -> object:
        """The interactive view for a notebook cell."""
        from normlens.viewer.explained import notebook

        return notebook(self, state).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.explained import notebook

        return notebook(self, {}).mimebundle(repr(self), **options)

    def __repr__(self) -> str:
        what = f"next tokens of {len(self.tokens)}"
        if self.has_two_sequences:
            what = f"tokens of a target, from {len(self.explanations[0].source)} of its source"
        return f"Explanations({len(self)} {what}, completeness {self.completeness:.1e})"
