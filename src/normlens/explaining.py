"""What a lens explains: scores and cosines, traced back to tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.advancing import Progress, layers_shown
from normlens.checkpoints.sentences import Pooling
from normlens.cosine_options import CosineKeywords, CosineOptions
from normlens.encoding import Features, encode_any
from normlens.errors import InputError
from normlens.explain.ask import Positions, Targets, ask
from normlens.explain.ask_pairs import Tokens, ask_pairs
from normlens.explain.cosines import check_texts, cosines, text_pairs
from normlens.explain.words import Target
from normlens.explain_options import ExplainKeywords, ExplainOptions
from normlens.memory_shortage import SMALLER, shortage_explained
from normlens.models.heads import read_head
from normlens.option_fields import shows_fields_of
from normlens.pair_inputs import GivenPairs, SourceTarget
from normlens.pairs import Pair
from normlens.results.cosine import Cosine
from normlens.results.explanation import Explanation
from normlens.results.explanations import Explanations
from normlens.signal_inputs import Signal, takes_signals
from normlens.text import Encoded, Ids, Text, Texts
from normlens.text_sides import Side

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens.lens import Lens


class QuestionKeywords(ExplainKeywords, total=False):
    """Keywords of `Lens.explain` that leave the number of its answers as it is."""

    layer: int | None
    truncate: bool
    sampling_rate: int | None
    progress: Progress | bool | None


#: Any linear reading of a vector.
Direction = Sequence[float] | torch.Tensor | NDArray[np.floating]


class Explains:
    """The part of a lens that explains."""

    _read_pooling: Callable[[], Pooling]

    @overload
    def explain(
        self,
        text: Text | Signal,
        *,
        target: Target | None = ...,
        contrast: Target | None = ...,
        position: int | None = ...,
        direction: Direction | None = ...,
        **options: Unpack[QuestionKeywords],
    ) -> Explanation: ...

    @overload
    def explain(
        self, text: Text, *, position: Literal["all"], **options: Unpack[QuestionKeywords]
    ) -> Explanations: ...

    @overload
    def explain(
        self,
        text: Side,
        *,
        target: Side | None = ...,
        token: Literal["all"],
        **options: Unpack[QuestionKeywords],
    ) -> Explanations: ...

    @overload
    def explain(
        self,
        text: Text | Texts | Side | list[SourceTarget] | Signal | list[Signal] | None = ...,
        *,
        target: Targets | Side = ...,
        contrast: Targets = ...,
        token: Tokens = ...,
        position: Positions = ...,
        direction: Direction | None = ...,
        layer: int | None = ...,
        input_ids: Ids | None = ...,
        attention_mask: Ids | None = ...,
        token_type_ids: Ids | None = ...,
        decoder_input_ids: Ids | None = ...,
        decoder_attention_mask: Ids | None = ...,
        input_features: Features | None = ...,
        sampling_rate: int | None = ...,
        truncate: bool = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[ExplainKeywords],
    ) -> Explanation | Explanations | list[Explanation | Explanations]: ...

    @shows_fields_of(ExplainOptions)
    @shortage_explained("this explanation", SMALLER)
    def explain(
        self,
        text: Text | Texts | Side | list[SourceTarget] | Signal | list[Signal] | None = None,
        *,
        target: Targets | Side = None,
        contrast: Targets = None,
        token: Tokens = None,
        position: Positions = None,
        direction: Direction | None = None,
        layer: int | None = None,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        decoder_input_ids: Ids | None = None,
        decoder_attention_mask: Ids | None = None,
        input_features: Features | None = None,
        sampling_rate: int | None = None,
        truncate: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[ExplainKeywords],
    ) -> Explanation | Explanations | list[Explanation | Explanations]:
        """Trace a score back to every input token, exactly, at the price of one backward pass.

        `target` is what the score is about: the next token of a causal model, the token at the
        mask of a masked one, a classifier's label; a word, a label or an index; by default what the
        model says. `contrast` asks why the target and not that. `position` is where the score is
        read, "all" explains each next token of a text in turn. `direction` is a vector that is read
        at `position` behind layer `layer`, or behind the model's last step. A list of texts,
        targets, contrasts or positions gives a list. `progress` is called with the layers done and
        the layers on the way, after each layer of each batch; what it raises ends the work. True
        shows a bar, False none, and the default is as in `maps`.

        Of an encoder–decoder, `text` is the source and `target` the decoder's text (a text or its
        words; None: the one that the model generates), and `token` says which of the target's
        tokens is explained: its place from 0, a word, or "all", each in turn; by default the last.
        `contrast` asks why that token and not another in its place. Source and prefix are given as
        to `maps`, with a list of pairs for several. Pictures and sounds are given as to `maps`,
        too, and patches or frames are the tokens.

        The other options are those of `normlens.explain_options.ExplainOptions`, which explains
        them: the rule for activations, flow maps by layer, head and scope, memory.
        """
        chosen = ExplainOptions(**options)
        lens = cast("Lens", self)
        given = GivenPairs(
            text,
            target,
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            input_features,
            sampling_rate,
        )
        if lens.two_stacks:
            _check_pair_question(lens, position, direction, layer)
            read_head(lens.adapter)  # before the model generates, which it could not without one
        elif token is not None:
            raise InputError(
                f"token=… names a token of an encoder–decoder's target; {lens.name} reads one "
                "sequence: ask with target=… and position=…"
            )
        else:
            given = replace(given, target=None)  # here it is the word that is explained
        items, many = encode_any(lens, given, token_type_ids, truncate=truncate)
        if lens.two_stacks:
            pairs = [item for item in items if isinstance(item, Pair)]
            with layers_shown(progress, lens.device.type) as advance:
                return ask_pairs(lens, pairs, many, token, contrast, chosen, advance)
        encoded = [item for item in items if isinstance(item, Encoded)]
        with layers_shown(progress, lens.device.type) as advance:
            return ask(
                lens, encoded, many, target, contrast, position, direction, layer, chosen, advance
            )

    @cached_property
    def pooling(self) -> Pooling:
        """How the vectors of a text become one; read where the model lies when it is asked for."""
        return self._read_pooling()

    @overload
    def cosine(
        self,
        a: str,
        b: str,
        *,
        truncate: bool = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[CosineKeywords],
    ) -> Cosine: ...

    @overload
    def cosine(
        self,
        a: list[tuple[str, str]],
        *,
        truncate: bool = ...,
        progress: Progress | bool | None = ...,
        **options: Unpack[CosineKeywords],
    ) -> list[Cosine]: ...

    @shows_fields_of(CosineOptions)
    @shortage_explained("this cosine", SMALLER)
    def cosine(
        self,
        a: str | list[tuple[str, str]],
        b: str | None = None,
        *,
        truncate: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[CosineKeywords],
    ) -> Cosine | list[Cosine]:
        """Which tokens made the cosine of two texts' vectors; a list of pairs gives a list.

        The model's vectors of a text become one as its sentence-transformers files say (mean, cls
        or last token, Dense maps), or by their mean where there are none. `progress` is called with
        the layers done and all layers as the tokens pass them; what it raises ends the work. True
        shows a bar, False none, and the default is as in `maps`. The other options are those of
        `normlens.cosine_options.CosineOptions`.
        """
        chosen = CosineOptions(**options)
        pairs, many = text_pairs(a, b)
        check_texts(pairs, self.pooling)
        lens = cast("Lens", self)
        if takes_signals(lens):
            raise InputError(f"{lens.name} reads pictures or sound; cosines are of two texts")
        encoded = lens.encode([text for pair in pairs for text in pair], truncate=truncate)
        together = list(zip(encoded[::2], encoded[1::2], strict=True))
        with layers_shown(progress, lens.device.type) as advance:
            results = cosines(lens, self.pooling, together, chosen, advance)
        return results if many else results[0]


def _check_pair_question(lens: Lens, position: object, direction: object, layer: object) -> None:
    """Raise for what is asked of models of one stack only."""
    if position is not None:
        raise InputError(
            f"{lens.name} is an encoder–decoder: say which token of its target is explained with "
            "token=…, not with position"
        )
    if direction is not None or layer is not None:
        raise InputError(
            "a direction is read in models of one stack; of an encoder–decoder ask for a token of "
            "its target (token=…, contrast=…)"
        )
