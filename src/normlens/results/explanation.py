"""An explanation: where a model's score comes from, token by token and layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.precisions import cost_in_words
from normlens.results import conversions, explanation_file, store
from normlens.results.equality import same
from normlens.results.explained_sequences import ExplainsSequences
from normlens.results.merged_explanation import merged_words
from normlens.results.patches import PatchGrid
from normlens.results.tokens import TokenAxis
from normlens.scopes import resolve

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

    from normlens.text import Text
    from normlens.viewer.state import ExplanationState

#: The flow of a whole layer, among those behind scopes.
WHOLE = ""


@dataclass(frozen=True, eq=False)
class Explanation(ExplainsSequences):
    """One score, or the difference of two, traced back to the tokens of a text.

    Two sums are the score, to `completeness`:

        contributions.sum() + remainder == value
        components[layer].sum() + (biases of this layer and of all behind it) == value

    Inside a layer every way of a vector belongs to one component: to the first block that it
    passes (ATTN, CROSS or FF), or to RES if it passes none; `heads` and `cross_heads` split ATTN
    and CROSS. What biases add is in `biases` alone. Each layer is passed anew, so components of
    different layers are not added up.

    Made by `Lens.explain`. Of an encoder–decoder, tokens are the source's and then the target's,
    and layers the encoder's and then the decoder's; tokens of the stack that does not run wait,
    with what they carry (in RES).
    """

    task: str  # what was read: a head's task, or "direction"
    value: float  # the score that is explained, as the model itself computes it
    nodes: NDArray[np.floating]  # [layer, source]: what each vector that enters a layer carries
    components: NDArray[np.floating]  # [layer, component, target], NaN: the layer has none such
    component_names: list[str]
    heads: NDArray[np.floating]  # [layer, head, target], ATTN by head
    biases: list[tuple[int | str, str, float]]  # layer or "head", component, value
    flows: dict[str, NDArray[np.floating]]  # scope → [layer, target, source]
    raw_tokens: list[str]
    completeness: float
    provenance: dict[str, Any]
    head_flow: NDArray[np.floating] | None = None  # [layer, head, target, source]
    position: int | None = None  # where the score is read; None: everywhere
    layer: int | None = None  # behind which layer; None: at the end
    target: str | None = None
    target_id: int | None = None
    target_value: float | None = None
    probability: float | None = None
    contrast: str | None = None
    contrast_id: int | None = None
    contrast_value: float | None = None
    contrast_probability: float | None = None
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None
    word_labels: list[str] = field(default_factory=list)
    text: Text | None = None
    encoder_tokens: int | None = None  # the first tokens are so many of the source; None: no source
    encoder_layers: int = 0  # the first layers are so many of the encoder
    cross_heads: NDArray[np.floating] | None = None  # [layer, head, target], CROSS by head
    grid: PatchGrid | None = None  # which tokens are patches of a picture, and where

    # What it says --------------------------------------------------------------------------------

    @property
    def tokens(self) -> list[str]:
        """The tokens as people read them; `raw_tokens` are the tokenizer's."""
        return self.axis.tokens

    @cached_property
    def axis(self) -> TokenAxis:
        """The tokens with what is known of each."""
        words = self.token_words
        return TokenAxis(self.raw_tokens, self.token_ids, self.special, words, self.word_labels)

    @property
    def contributions(self) -> NDArray[np.floating]:
        """What each input token contributes to the score, [source]; it may be negative."""
        return self.nodes[0]

    @property
    def remainder(self) -> float:
        """What no token owns: all biases together."""
        return float(sum(share for _, _, share in self.biases))

    @property
    def bias(self) -> pd.Series:
        """What no token owns, by layer ("head" is what stands behind the last) and component."""
        return conversions.bias_by_layer(self)

    @property
    def flow(self) -> NDArray[np.floating]:
        """How much of the score goes from source to target in each layer, [layer, target, source].

        Columns sum to what enters a layer, rows and biases to what leaves it.
        """
        return self.flow_behind(None)

    def flow_behind(self, scope: str | None) -> NDArray[np.floating]:
        """The same, of what passes the end of a scope only; None is the whole layer."""
        if scope is None:
            if WHOLE not in self.flows:
                raise InputError(
                    "this explanation was made without flow maps (its text may be very long); ask "
                    "for them with flow=True"
                )
            return self.flows[WHOLE]
        known = [name for name in self.flows if name != WHOLE]
        if not known:
            raise InputError(
                "this explanation has no flow maps behind scopes; ask for them with scopes=[…]"
            )
        return self.flows[resolve(scope, known)]

    def top(self, count: int = 10) -> pd.DataFrame:
        """The tokens that contribute most, whatever their sign."""
        frame = self.to_pandas()
        order = np.argsort(-np.abs(frame["contribution"]), kind="stable")[:count]
        return frame.iloc[order].reset_index(drop=True)

    def words(self) -> Explanation:
        """The same by words: contributions and flows of a word's tokens are summed."""
        return merged_words(self)

    # Taking away ---------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row per token: its place, the token, its contribution."""
        return conversions.explanation_to_pandas(self)

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named, and its tokens, layers and components as coordinates."""
        return conversions.explanation_to_xarray(self)

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write a safetensors file with JSON metadata; `normlens.open` reads it.

        Files that are there already are treated as `Maps.save` treats them.
        """
        return store.write(*explanation_file.saved(self), path, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> Explanation:
        """Read an explanation that `save` wrote."""
        return store.open_as(Explanation, path)

    # Showing: `ax` draws into axes of yours instead of a new figure -------------------------------

    def plot(
        self, *, cmap: str = "RdBu_r", max_label: int = 24, ax: PlotAxes | None = None
    ) -> Figure:
        """The tokens on the colours of their contributions, and bars that sum to the score."""
        from normlens.figures import plot_explanation

        return plot_explanation(self, cmap=cmap, max_label=max_label, ax=ax)

    def plot_flow(
        self,
        *,
        scope: str | None = None,
        max_label: int = 14,
        max_edges: int = 1500,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """The score's way through the layers; see `normlens.figures.plot_flow`."""
        from normlens.figures import plot_flow

        return plot_flow(self, scope=scope, max_label=max_label, max_edges=max_edges, ax=ax)

    def plot_components(self, *, cmap: str = "RdBu_r", ax: PlotAxes | None = None) -> Figure:
        """What passes each layer's blocks and heads; see `normlens.figures.plot_components`."""
        from normlens.figures import plot_components

        return plot_components(self, cmap=cmap, ax=ax)

    # Looking at it -------------------------------------------------------------------------------

    def to_html(
        self, path: str | Path, *, largest: float | None = 60.0, overwrite: bool | None = None
    ) -> Path:
        """Write one HTML file to look at it in, which needs no network.

        Beyond `largest` MB the flow maps are left out, and the page says so.
        """
        from normlens.viewer import explanation_html

        return explanation_html(self, path, largest=largest, overwrite=overwrite)

    def show(self, **state: Unpack[ExplanationState]) -> object:
        """The interactive view for a notebook cell; ``why.show(token=3)`` opens it there."""
        from normlens.viewer.explained import notebook

        return notebook(self, state).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.explained import notebook

        return notebook(self, {}).mimebundle(repr(self), **options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        names = [f.name for f in fields(self) if f.name != "provenance"]
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Explanation({self.question}: {self.value:.4g} = "
            f"{float(self.contributions.sum(dtype=np.float64)):.4g} from {len(self.raw_tokens)} "
            f"tokens + {self.remainder:.4g} from biases, completeness {self.completeness:.1e}"
            f"{cost_in_words(str(self.provenance.get('dtype')))})"
        )

    @property
    def question(self) -> str:
        """What is explained, in words."""
        if self.target is None:
            where = "the end" if self.layer is None else f"layer {self.layer}"
            return f"a direction at position {self.position} behind {where}"
        against = "" if self.contrast is None else f" and not {self.contrast!r}"
        return f"why {self.target!r}{against}"
