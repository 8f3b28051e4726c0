"""Explanations: where a score comes from, token by token and layer by layer; cosines alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import figures
from normlens.errors import InputError, check_choice, require
from normlens.measures import maps as measures
from normlens.options import cost_in_words
from normlens.results.axes import (
    COSINE,
    EXPLANATION,
    Axes,
    TokenAxis,
    check_arrays,
    check_scopes,
    check_shape,
    dataset,
    long_table,
    strongest_rows,
)
from normlens.results.store import Result, Results, TokenResult
from normlens.results.words import (
    DECODER,
    EMBEDDINGS,
    ENCODER,
    PREFIX,
    READINGS,
    SOURCE,
    cut,
)
from normlens.scopes import resolve

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from typing_extensions import Unpack

    from normlens.results.axes import LayerTargetSource
    from normlens.viewer.notebook import Notebook
    from normlens.viewer.pages import CosineState, ExplanationState


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
#: How far a file's numbers may miss their sum beside the completeness that it states.
_ROUNDING = 1e-6


class Explained(Result):
    """What one explanation and those of each next token have in common: their views."""

    def show(self, **state: Unpack[ExplanationState]) -> object:
        """The interactive view for a notebook cell; ``why.show(token=3)`` opens it there."""
        return self._notebook(state).show()

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        from normlens.viewer.notebook import explanation_notebook

        assert isinstance(self, (Explanation, Explanations))
        return explanation_notebook(self, state)


@dataclass(frozen=True, eq=False)
class Explanation(Explained, TokenResult):
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
    head_flow: NDArray[np.floating] | None = None  # [layer, head, target, source]
    edges: NDArray[np.integer] | None = None  # [layer, edge, two]: target and source, of `flow`
    edge_values: NDArray[np.floating] | None = None  # [layer, edge]: what each carries
    edge_totals: NDArray[np.floating] | None = None  # [layer]: Σ |flow| of all edges
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
    encoder_tokens: int | None = None  # the first tokens are so many of the source; None: no source
    encoder_layers: int = 0  # the first layers are so many of the encoder
    cross_heads: NDArray[np.floating] | None = None  # [layer, head, target], CROSS by head
    answer_ids: list[int] | None = None  # tokens explained together; the last is read at `position`
    score: str | None = None  # of an answer: "log-probability" or "logit"
    log_probability: float | None = None  # of an answer

    @property
    def _arrays(self) -> dict[str, tuple[Axes, NDArray[np.floating]]]:
        """Every array with its axes, by its name; those of flows have their scope behind it."""
        arrays = {name: getattr(self, name) for name in EXPLANATION if name != "flow"}
        arrays |= {f"flow/{scope}": flow for scope, flow in self.flows.items()}
        return {
            name: (EXPLANATION[name.partition("/")[0]], array)
            for name, array in arrays.items()
            if array is not None
        }

    def _check(self) -> None:
        """Raise unless the fields are those of an explanation that a lens could have made."""
        super()._check()
        layers, n, two = len(self.nodes), len(self.raw_tokens), self.has_two_sequences
        sizes = {"layer": layers, "target": n, "source": n}
        sizes["component"] = len(set(self.component_names))
        for name, (axes, array) in self._arrays.items():
            check_shape(name, array.shape, axes, sizes)
            require(array.size, f"{name!r} has shape {array.shape}")
        check_scopes(scope for scope in self.flows if scope != WHOLE)
        kept = self.edges, self.edge_values, self.edge_totals
        require(len({each is None for each in kept}) == 1, "'edges' lack values or totals")
        if self.edges is not None:
            ends = np.unique(self.edges)
            require(set(ends) <= set(range(n)), "'edges' name tokens that are not there")
        alike = two == (self.cross_heads is not None) == bool(self.encoder_layers)
        require(alike, "'cross_heads' and 'encoder_layers' belong to two sequences")
        first = self.encoder_tokens or 0
        for name, place, start, end in (
            ("encoder_tokens", self.encoder_tokens, 1, n),
            ("encoder_layers", self.encoder_layers or None, 1, layers),
            ("position", self.position, 0, n - first),  # one of the target's
            ("layer", self.layer, 0, layers),
            *(("biases", layer, 0, layers) for layer, *_ in self.biases if layer != "head"),
        ):
            inside = place is None or (isinstance(place, int) and start <= place < end)
            require(inside, f"{name!r} is {place} of {end}")
        for share in (self.probability, self.contrast_probability):
            require(share is None or 0 <= share <= 1 + _ROUNDING, f"a probability is {share}")
        self._check_sum()

    def _check_sum(self) -> None:
        """Raise unless contributions and biases make the score."""
        scores = [self.value, self.target_value or 0.0, self.contrast_value or 0.0]
        parts = [float(np.abs(self.nodes).max()), *(share for *_, share in self.biases), *scores]
        total = float(self.contributions.sum(dtype=np.float64)) + self.remainder
        allowed = 2 * (self.completeness + _ROUNDING) * max(map(abs, parts))
        fits = all(map(math.isfinite, parts)) and abs(total - self.value) <= allowed
        words = f"its contributions and biases sum to {total:.6g}, not to {self.value:.6g}"
        require(fits, words)

    # What it says ---------------------------------------------------------------------------------

    @property
    def contributions(self) -> NDArray[np.floating]:
        """What each input token contributes to the score, [source]; it may be negative."""
        return self.nodes[0]

    def read(self, reading: str = EMBEDDINGS) -> NDArray[np.floating]:
        """What each token contributes, [source], by where it is read.

        At the "embeddings" it is `contributions`. The mean over "layers" is fair to a first token
        that later layers only pass the score through (an attention sink): it says which position
        carries the score on its way, and near the end that is the last one.
        """
        check_choice(reading, READINGS, "reading")
        return self.nodes[0] if reading == EMBEDDINGS else self.nodes.mean(axis=0)

    @property
    def remainder(self) -> float:
        """What no token owns: all biases together."""
        return float(sum(share for _, _, share in self.biases))

    def remainder_of(self, reading: str = EMBEDDINGS) -> float:
        """What no token owns of a reading; over layers, biases count where they are yet to come."""
        if reading == EMBEDDINGS:
            return self.remainder
        layers = len(self.nodes)
        shares = (
            1.0 if layer == "head" else (int(layer) + 1) / layers for layer, *_ in self.biases
        )
        return float(sum(s * share for s, (*_, share) in zip(shares, self.biases, strict=True)))

    @property
    def bias(self) -> pd.Series:
        """What no token owns, by layer ("head" is what stands behind the last) and component.

        Of an encoder–decoder first by stack; layers count from 0 in each.
        """
        import pandas as pd

        names = ["stack", "layer", "component"]
        rows = [(*self.stack_of(layer), name, share) for layer, name, share in self.biases]
        table = pd.DataFrame(rows, columns=[*names, "bias"]).astype({"bias": float})
        return table.set_index(names if self.has_two_sequences else names[1:])["bias"]

    @property
    def has_flow(self) -> bool:
        """Whether it keeps what flows through the layers: whole maps, or the strongest edges."""
        return WHOLE in self.flows or self.edges is not None

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
                    "for them with flow=True, or for the strongest edges with flow=1000"
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
        return strongest_rows(self.to_pandas(), "contribution", count)

    def words(self) -> Explanation:
        """The same by words: contributions and flows of a word's tokens are summed."""
        members = self.axis.word_groups()
        merged: dict[str, Any] = {
            name: measures.sum_words(array, members, ends)
            for name, (axes, array) in self._arrays.items()
            if (ends := len({"target", "source"} & {*axes}))
        }
        if self.edges is not None:
            word_of = np.empty(len(self.raw_tokens), dtype=np.int64)
            for word, group in enumerate(members):
                word_of[group] = word
            merged["edges"] = word_of[self.edges]
        merged["flows"] = {scope: merged.pop(f"flow/{scope}") for scope in self.flows}
        position, first = self.read_at, self.encoder_tokens
        if first is not None:
            first = sum(group[0] < first for group in members)
        if position is not None:
            position = next(place for place, group in enumerate(members) if position in group)
            position -= first or 0
        merged |= self.axis.words().labels
        return replace(self, **merged, position=position, encoder_tokens=first)

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
        return self.parts()

    def parts(self, reading: str = EMBEDDINGS) -> list[SequencePart]:
        """The same, with contributions as they are read at the embeddings or over the layers."""
        axis, contributions = self.axis, self.read(reading)
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
        places = [self.stack_of(layer) for layer in range(len(self.nodes))]
        two = self.has_two_sequences
        return [f"{stack} {layer}" if two else str(layer) for stack, layer in places]

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
        return self.flow[self.encoder_layers :, self.encoder_tokens :, : self.encoder_tokens]

    @property
    def encoder_flow(self) -> LayerTargetSource:
        """How much goes where in the encoder, [encoder layer, target, source]."""
        self._two()
        return self.flow[: self.encoder_layers, : self.encoder_tokens, : self.encoder_tokens]

    @property
    def decoder_flow(self) -> LayerTargetSource:
        """How much goes where among the target's tokens, [decoder layer, target, source]."""
        self._two()
        return self.flow[self.encoder_layers :, self.encoder_tokens :, self.encoder_tokens :]

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
                    "sequence": part.name,
                    "position": range(len(part)),
                    "token": part.tokens,
                    "contribution": part.contributions,
                }
            )
            for part in self.sequences
        ]
        table = pd.concat(frames, ignore_index=True)
        return table if self.has_two_sequences else table.drop(columns="sequence")

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named, and its tokens, layers and components as coordinates."""
        variables: dict[str, Any] = {
            name.removesuffix("/"): labelled for name, labelled in self._arrays.items()
        }
        variables["contributions"] = ("source", self.contributions)
        coordinates: dict[str, Any] = {
            "layer": np.arange(len(self.nodes)),
            "component": self.component_names,
            "source_token": ("source", self.tokens),
            "target_token": ("target", self.tokens),
        }
        if self.has_two_sequences:
            coordinates["layer"] = self.layer_names
            for axis in ("source", "target"):
                coordinates[f"{axis}_sequence"] = (axis, self.token_sequences)
        return dataset(self, variables, coordinates, "value", "remainder", "completeness")

    # Pictures: functions of the result; `ax` draws into axes of yours instead of a new figure.
    plot = figures.plot_explanation
    plot_flow = figures.plot_flow
    plot_components = figures.plot_components

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
        return f"why {(cut(self.target) if self.answer_ids else self.target)!r}{against}"


# Explanations of each next token of a text, side by side.


@dataclass(frozen=True, eq=False)
class Explanations(Explained, Results[Explanation]):
    """What made each token of a text likely: one explanation per predicted token."""

    explanations: list[Explanation]

    @property
    def _each(self) -> list[Explanation]:
        return self.explanations

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

    def to_pandas(self) -> pd.DataFrame:
        """One row per predicted token and source."""
        return rows_of_each(self, (each.to_pandas() for each in self.explanations))

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

    plot = figures.plot_explanations
    plot_shares = figures.plot_shares

    def __repr__(self) -> str:
        what = f"next tokens of {len(self.tokens)}"
        if self.explanations[0].answer_ids:
            what = f"parts of an answer, from {len(self.tokens)} tokens"
        if self.has_two_sequences:
            what = f"tokens of a target, from {len(self.explanations[0].source)} of its source"
        return f"Explanations({len(self)} {what}, completeness {self.completeness:.1e})"


def rows_of_each(why: Explanations, tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """A table of each explanation below the other, with the token that is explained."""
    import pandas as pd

    frames = [
        table.assign(predicted=place, predicted_token=each.target)
        for place, (each, table) in enumerate(zip(why, tables, strict=True), 1)
    ]
    return pd.concat(frames, ignore_index=True)


# A cosine of two texts, taken apart: which tokens made it.


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
class Cosine(Result):
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
    provenance: dict[str, Any] = field(default_factory=dict, compare=False)
    text_a: str | None = None
    text_b: str | None = None

    def _check(self) -> None:
        """Raise unless the arrays are of the texts' tokens."""
        check_arrays(self, COSINE, {"a": len(self.a), "b": len(self.b)})

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
        return strongest_rows(self.to_pandas(), "value", count)

    def words(self) -> Cosine:
        """The same by words: the parts of a word's tokens are summed."""
        of_a, of_b = self.a.word_groups(), self.b.word_groups()
        return replace(
            self,
            matrix=measures.sum_words(measures.sum_words(self.matrix, of_b).T, of_a).T,
            a_with_bias=measures.sum_words(self.a_with_bias, of_a),
            b_with_bias=measures.sum_words(self.b_with_bias, of_b),
            a=self.a.words(),
            b=self.b.words(),
        )

    # Taking away ---------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row per pair of tokens: their places, the tokens, and their part of the cosine."""
        a = {"a": range(len(self.a)), "a_token": self.tokens_a}
        return long_table(self.matrix, a, {"b": range(len(self.b)), "b_token": self.tokens_b})

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named and its tokens as coordinates."""
        variables: dict[str, Any] = {
            name: (axes, getattr(self, name)) for name, axes in COSINE.items()
        }
        coordinates = {"a_token": ("a", self.tokens_a), "b_token": ("b", self.tokens_b)}
        variables["bias"] = ((), self.bias)
        return dataset(self, variables, coordinates, "value", "completeness")

    plot = figures.plot_cosine

    def show(self, **state: Unpack[CosineState]) -> object:
        """The interactive view for a notebook cell; ``pair.show(view="matrix")`` opens it there."""
        return self._notebook(state).show()

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        from normlens.viewer.notebook import cosine_notebook

        return cosine_notebook(self, state)

    def __repr__(self) -> str:
        model = self.provenance.get("model", "?")
        note = f", {self.note}" if self.note else ""
        cost = cost_in_words(str(self.provenance.get("dtype")))
        pairs = " × ".join(map(str, self.matrix.shape))
        return (
            f"Cosine({model}: {self.value:.4f} = {float(self.matrix.sum()):.4f} from "
            f"{pairs} pairs of tokens + {sum(self.remainder.values()):.4f} from "
            f"biases, completeness {self.completeness:.1e}{cost}{note})"
        )
