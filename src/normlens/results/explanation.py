"""Explanations: where a score comes from, token by token and layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from normlens import measures
from normlens.errors import InputError
from normlens.options import cost_in_words
from normlens.results import formats, store
from normlens.results.axes import EXPLANATION, TokenAxis, same_fields
from normlens.results.conversions import import_xarray
from normlens.results.routing import PatchGrid
from normlens.results.words import DECODER, ENCODER, PREFIX, SOURCE
from normlens.scopes import resolve

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

    from normlens.inputs.text import Text
    from normlens.results.axes import LayerTargetSource
    from normlens.viewer.pages import ExplanationState


# The sequences that an explanation is about: a text, or the source and the prefix of a target.
#
# An encoder–decoder's explanation has both stacks in one list of layers, the encoder's first, and
# both sequences in one list of tokens, the source first.


@dataclass(frozen=True)
class SequencePart:
    """What the tokens of one sequence contribute to a score."""

    name: str  # `SOURCE` or `PREFIX`; empty: there is no other sequence
    axis: TokenAxis
    contributions: NDArray[np.floating]  # [token]
    first: int = 0  # the place of its first token among all of the explanation's

    @property
    def tokens(self) -> list[str]:
        """The tokens as people read them."""
        return self.axis.tokens

    @property
    def total(self) -> float:
        """What the tokens contribute together."""
        return float(self.contributions.sum(dtype=np.float64))

    def __len__(self) -> int:
        return len(self.axis)


@dataclass(frozen=True)
class Shares:
    """How much of a score an encoder–decoder's two sequences supply, and what no token owns."""

    source: float  # Σ contributions of the source's tokens
    prefix: float  # Σ contributions of the target's tokens up to where the score is read
    bias: float
    source_share: float  # |source| / (|source| + |prefix|)
    source_share_absolute: float  # Σ|c| of the source's tokens / Σ|c| of all tokens

    @property
    def prefix_share(self) -> float:
        return 1 - self.source_share

    @property
    def prefix_share_absolute(self) -> float:
        return 1 - self.source_share_absolute


# An explanation: where a model's score comes from, token by token and layer by layer.


#: The flow of a whole layer, among those behind scopes.
WHOLE = ""


@dataclass(frozen=True, eq=False)
class Explanation:
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

    # What it says ---------------------------------------------------------------------------------

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
        """What no token owns, by layer ("head" is what stands behind the last) and component.

        Of an encoder–decoder first by stack; layers count from 0 in each.
        """
        import pandas as pd

        names = ["layer", "component"]
        keys: list[tuple[object, ...]] = [(layer, name) for layer, name, _ in self.biases]
        if self.has_two_sequences:
            names = ["stack", *names]
            keys = [(*self.stack_of(layer), component) for layer, component, _ in self.biases]
        index = pd.MultiIndex.from_tuples(keys, names=names)
        values = [share for *_, share in self.biases]
        return pd.Series(values, index=index, name="bias", dtype=float)

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
        members, axis = self.axis.word_groups(), self.axis.words()

        def merged(array: NDArray[Any], axes: int) -> NDArray[Any]:
            return measures.sum_words(array, members, axes)

        position, first = self.read_at, self.encoder_tokens
        if first is not None:
            first = sum(group[0] < first for group in members)
        if position is not None:
            position = next(place for place, group in enumerate(members) if position in group)
            position -= first or 0
        return replace(
            self,
            nodes=merged(self.nodes, 1),
            components=merged(self.components, 1),
            heads=merged(self.heads, 1),
            flows={scope: merged(flow, 2) for scope, flow in self.flows.items()},
            head_flow=None if self.head_flow is None else merged(self.head_flow, 2),
            position=position,
            encoder_tokens=first,
            cross_heads=None if self.cross_heads is None else merged(self.cross_heads, 1),
            **axis.labels,
        )

    # The sequences that tokens and layers belong to -----------------------------------------------

    @property
    def has_two_sequences(self) -> bool:
        """Whether an encoder–decoder's score is explained."""
        return self.encoder_tokens is not None

    @property
    def read_at(self) -> int | None:
        """The place of `position` among all tokens; None: the score is read everywhere."""
        return None if self.position is None else self.position + (self.encoder_tokens or 0)

    @property
    def seen(self) -> int:
        """How many of the tokens can contribute: not those that a decoder has yet to read."""
        every = len(self.raw_tokens)
        return every if self.encoder_tokens is None else (self.read_at or 0) + 1

    @cached_property
    def sequences(self) -> list[SequencePart]:
        """The source and the prefix, or the one text; a prefix ends where the score is read."""
        axis, contributions = self.axis, self.contributions
        if self.encoder_tokens is None:
            return [SequencePart("", axis, contributions)]
        m, end = self.encoder_tokens, self.seen
        return [
            SequencePart(SOURCE, axis.take(range(m)), contributions[:m]),
            SequencePart(PREFIX, axis.take(range(m, end)), contributions[m:end], m),
        ]

    @property
    def source(self) -> SequencePart:
        """What the source's tokens contribute to an encoder–decoder's score."""
        return self._two()[0]

    @property
    def prefix(self) -> SequencePart:
        """What the target's tokens contribute, up to where the score is read."""
        return self._two()[1]

    @property
    def shares(self) -> Shares:
        """How much of the score the source supplies, and how much the prefix."""
        source, prefix = self._two()
        values = source.contributions, prefix.contributions
        return Shares(
            source.total,
            prefix.total,
            self.remainder,
            measures.share_of_sums(*values),
            measures.share_of_sizes(*values),
        )

    @property
    def layer_names(self) -> list[str]:
        """What each layer is called: a number, behind its stack where there are two."""
        count = len(self.nodes)
        if not self.has_two_sequences:
            return [str(layer) for layer in range(count)]
        return [" ".join(map(str, self.stack_of(layer))) for layer in range(count)]

    @property
    def token_sequences(self) -> list[str]:
        """The sequence that each token belongs to; those behind a prefix are of it, too."""
        m = self.encoder_tokens or 0
        return [SOURCE] * m + [PREFIX] * (len(self.raw_tokens) - m)

    def stack_of(self, layer: int | str) -> tuple[str, int | str]:
        """The stack of a layer among those of both, and its place there; "head" is behind all."""
        if isinstance(layer, str):
            return DECODER, layer
        inside = layer < self.encoder_layers
        return (ENCODER, layer) if inside else (DECODER, layer - self.encoder_layers)

    @property
    def cross_flow(self) -> LayerTargetSource:
        """How much goes from the source to the target's tokens, [decoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self.flow[self.encoder_layers :, m:, :m]

    @property
    def encoder_flow(self) -> LayerTargetSource:
        """How much goes where in the encoder, [encoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self.flow[: self.encoder_layers, :m, :m]

    @property
    def decoder_flow(self) -> LayerTargetSource:
        """How much goes where among the target's tokens, [decoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self.flow[self.encoder_layers :, m:, m:]

    def _two(self) -> list[SequencePart]:
        if not self.has_two_sequences:
            raise InputError(
                "this explanation is of one sequence; only an encoder–decoder's has a source and "
                "a prefix"
            )
        return self.sequences

    # Taking away ----------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row per token: its place, the token, its contribution.

        Of an encoder–decoder first its sequence; places count from 0 in each.
        """
        import pandas as pd

        frames = [
            pd.DataFrame(
                {
                    **({"sequence": part.name} if part.name else {}),
                    "position": np.arange(len(part)),
                    "token": part.tokens,
                    "contribution": part.contributions,
                }
            )
            for part in self.sequences
        ]
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named, and its tokens, layers and components as coordinates."""
        xr = import_xarray()
        names = ("nodes", "components", "heads")
        variables = {name: (EXPLANATION[name], getattr(self, name)) for name in names}
        variables["contributions"] = (("source",), self.contributions)
        for scope, flow in self.flows.items():
            variables[f"flow/{scope}" if scope else "flow"] = (EXPLANATION["flow"], flow)
        if self.head_flow is not None:
            variables["head_flow"] = (EXPLANATION["head_flow"], self.head_flow)
        layers: Any = np.arange(len(self.nodes))
        sequences: dict[str, Any] = {}
        if self.has_two_sequences:
            layers = self.layer_names
            variables["cross_heads"] = (EXPLANATION["cross_heads"], self.cross_heads)
            of_tokens = self.token_sequences
            sequences = {f"{axis}_sequence": (axis, of_tokens) for axis in ("source", "target")}
        return xr.Dataset(
            variables,
            coords={
                "layer": layers,
                "component": self.component_names,
                "source_token": ("source", self.tokens),
                "target_token": ("target", self.tokens),
                **sequences,
            },
            attrs={
                "model": self.provenance.get("model"),
                "value": self.value,
                "remainder": self.remainder,
                "completeness": self.completeness,
            },
        )

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write a safetensors file with JSON metadata; `normlens.open` reads it.

        Files that are there already are treated as `Maps.save` treats them.
        """
        return store.write(
            *formats.saved_explanations([self], formats.ONE), path, overwrite=overwrite
        )

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

    # Looking at it --------------------------------------------------------------------------------

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
        from normlens.viewer.notebook import explanation_notebook

        return explanation_notebook(self, state).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.notebook import explanation_notebook

        return explanation_notebook(self, {}).mimebundle(repr(self), **options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        return same_fields(self, other)

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


# Explanations of each next token of a text, side by side.


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
        import pandas as pd

        rows = [
            {
                "position": why.position,
                "token": why.target,
                "score": why.value,
                "probability": why.probability,
                **asdict(why.shares),
            }
            for why in self.explanations
        ]
        return pd.DataFrame(rows)

    def words(self) -> Explanations:
        """The same by words of the text: contributions of a word's tokens are summed."""
        return Explanations([each.words() for each in self.explanations])

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write one safetensors file with JSON metadata; `normlens.open` reads it.

        Files that are there already are treated as `Maps.save` treats them.
        """
        saved = formats.saved_explanations(self.explanations, formats.SEVERAL)
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
        from normlens.viewer.notebook import explanation_notebook

        return explanation_notebook(self, state).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.notebook import explanation_notebook

        return explanation_notebook(self, {}).mimebundle(repr(self), **options)

    def __repr__(self) -> str:
        what = f"next tokens of {len(self.tokens)}"
        if self.has_two_sequences:
            what = f"tokens of a target, from {len(self.explanations[0].source)} of its source"
        return f"Explanations({len(self)} {what}, completeness {self.completeness:.1e})"
