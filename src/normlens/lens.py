"""The lens: maps, explanations and cosines of texts, pictures and sounds through one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normlens.errors import SMALLER, InputError, shortage_explained
from normlens.explain import search
from normlens.explain.citations import cite, prepared
from normlens.explain.explainer import Positions, Targets, Tokens, ask
from normlens.explain.questions import AnswerOptions, Target
from normlens.frozen.head_products import ProductStore, refresh_products
from normlens.gpu.transfer import DeviceTransfer
from normlens.inputs.encode import (
    RawInput,
    SourceTarget,
    check_stacks,
    encode_input,
    encode_one,
    encode_pairs,
)
from normlens.inputs.signals import Signal
from normlens.inputs.text import Chat, Encoded, Side, Text, Texts, Tokenizer
from normlens.layers import Layer
from normlens.loading.sentences import Pooling
from normlens.models import adapt
from normlens.models.base import read_head
from normlens.models.parts import SignalEncoder
from normlens.models.reading import execution_device, weights_dtype
from normlens.models.unwrapping import name_of_model
from normlens.options import (
    HALF,
    AnalysisOptions,
    CiteOptions,
    CosineOptions,
    ExplainOptions,
    ScoreOptions,
    check_keywords,
    cost_in_words,
    parse_bytes,
    shows_fields_of,
    split_keywords,
)
from normlens.pipeline import batches
from normlens.pipeline.batches import Progress
from normlens.pipeline.call import Call, check_memory_limit, check_out, stacks_of
from normlens.pipeline.comparisons import Float32Check, warn_of_padding
from normlens.pipeline.recordings import Recordings
from normlens.plan.costs import DEFAULT_PREPARED
from normlens.results.citation import Citation
from normlens.results.explanation import Cosine, Explanation, Explanations
from normlens.results.maps import Maps
from normlens.results.search import Ranking, Score

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens import _keywords as keywords


# What a lens explains: scores and cosines, traced back to tokens.


#: Any linear reading of a vector.
Direction = Sequence[float] | torch.Tensor | NDArray[np.floating]
#: One input, or several.
Given: TypeAlias = Text | Texts | Chat | Side | list[SourceTarget] | Signal | list[Signal]
#: The inputs that encoder–decoders alone have.
_OF_TWO_STACKS = ("decoder_input_ids", "decoder_attention_mask", "input_features")


# A lens on a model: from texts, pictures and sound to maps.


class Lens:
    """A model seen through its attribution maps. Made by `normlens.load`."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer | Literal[False] | None = None,
        *,
        name: str | None = None,
        source: str | None = None,
        revision: str | None = None,
        pooling: Callable[[], Pooling] = Pooling,
        max_tokens: int | None = None,
    ):
        self.adapter = adapt(model)
        self.model: nn.Module = self.adapter.model
        given = None if tokenizer is False else tokenizer
        takes_signals = isinstance(self.adapter, SignalEncoder)
        #: What makes a model's input of pictures or sound; models that read text have a tokenizer.
        self.processor: Tokenizer | None = given if takes_signals else None
        self.tokenizer: Tokenizer | None = None if takes_signals else given
        self.name = name or name_of_model(self.adapter.whole)  # shown in every result
        #: Where the model is from, which may be a path: for runs, which load it again.
        self.source = source or name_of_model(self.adapter.whole, path=True)
        self.revision = revision or getattr(self.adapter.whole.config, "_commit_hash", None)
        self._read_pooling = pooling
        self._max_tokens = max_tokens
        self._products: ProductStore | None = None
        #: Whether nobody edits weights between calls behind torch's back, as in a corpus run.
        self.weights_are_steady = False
        self.recordings = Recordings()
        #: What was compared with float32, where the model runs in half precision.
        self.float32_check = Float32Check(self)
        batches.check_finite(self.model, self.name)

    # What the model is --------------------------------------------------------------------------

    @property
    def model_type(self) -> str:
        return self.adapter.config.model_type

    @property
    def causal(self) -> bool:
        return self.adapter.causal

    @property
    def two_stacks(self) -> bool:
        """Whether the model is an encoder–decoder."""
        return self.adapter.two_stacks

    @cached_property
    def layers(self) -> list[Layer]:
        """Every layer as the adapter describes it; they may differ. An encoder's come first."""
        return [self.adapter.layer(block) for block in self.adapter.blocks()]

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def scopes(self) -> list[str]:
        """Every scope that any of this model's layers has."""
        return batches.scopes_of(self.layers)

    @cached_property
    def component_sequence(self) -> str:
        """The order of a layer's components; of each kind of layer where they differ."""
        stacks = batches.layers_by_stack(self.adapter, self.layers).items()
        words = {name: batches.components_in_words(each) for name, each in stacks}
        return words.get("") or "; ".join(f"{said} ({name})" for name, said in words.items())

    @property
    def device(self) -> torch.device:
        return execution_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        return weights_dtype(self.model)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The algebra runs in float32 at least, whatever the model runs in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the model's positions allow, or the object it came in."""
        return min(filter(None, (self.adapter.max_positions(), self._max_tokens)), default=None)

    @cached_property
    def pooling(self) -> Pooling:
        """How the vectors of a text become one; read where the model lies when it is asked for."""
        return self._read_pooling()

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        expected = f", completeness about {HALF[dtype]:.0e}" if dtype in HALF else ""
        return (
            f"Lens({self.name}: {self.model_type}, {self.n_layers} layers of "
            f"{self.component_sequence}, {dtype} on {self.device}{expected}{cost_in_words(dtype)})"
        )

    # What it shows ------------------------------------------------------------------------------

    @overload
    def maps(  # type: ignore[overload-overlap] # a text is an iterable of texts, too
        self, text: Text | Chat | Signal, **options: Unpack[keywords.TextKeywords]
    ) -> Maps: ...

    @overload
    def maps(self, text: Side, target: Side, **options: Unpack[keywords.TextKeywords]) -> Maps: ...

    @overload
    def maps(
        self,
        text: Texts | list[SourceTarget] | list[Signal],
        **options: Unpack[keywords.TextKeywords],
    ) -> list[Maps]: ...

    @overload
    def maps(self, *, input_ids: list[int], **options: Unpack[keywords.IdKeywords]) -> Maps: ...

    @overload
    def maps(
        self, *, input_ids: list[list[int]], **options: Unpack[keywords.IdKeywords]
    ) -> list[Maps]: ...

    @overload
    def maps(self, **options: Unpack[keywords.NoTextKeywords]) -> Maps | list[Maps]: ...

    @shows_fields_of(AnalysisOptions)
    @shows_fields_of(RawInput, without=("source",), before="out")
    def maps(
        self,
        text: Given | None = None,
        target: Side | None = None,
        *,
        out: str | PathLike[str] | None = None,
        overwrite: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[keywords.AnalysisKeywords],
    ) -> Maps | list[Maps]:
        """Attribution maps (`Maps`) of a text or a pair (a tuple); any other iterable gives a list.

        An encoder–decoder takes a source and a `target`, each a text or a list of words, or a list
        of such pairs; without a target the model generates one, always the likeliest token. Its
        maps are the decoder's, with the encoder's as ``maps.encoder``. Ids of what the decoder
        reads are `decoder_input_ids`; a model that hears takes `input_features`.

        An image model takes a picture: a PIL image, an array, a path, or pixel values as a tensor;
        its tokens are patches (``maps.grid``). An audio model takes a waveform with its
        `sampling_rate`, or input values as a tensor; its tokens are frames.

        Token ids are `input_ids`, one sequence or a batch. Padding, where `attention_mask` is 0, is
        left out, and a `NormLensWarning` says so where the model itself, called with both, gives
        other vectors: BERT and GPT-2 count padding before a text among the positions.

        `truncate` accepts the beginning of a text that is too long. With `out` the maps of one text
        are written to this .safetensors file layer by layer, and memory never holds them all: the
        returned maps stay in the file until they are used. A file that is there already needs
        `overwrite`. `progress` is called with the
        layers done and the layers asked for, after each layer of each batch; what it raises ends
        the analysis. True shows a bar, False none; by default there is one in terminals and
        notebooks for work on a CPU that takes longer than a moment. The other options are those of
        `normlens.options.AnalysisOptions`, which explains them: scopes, layers, heads, the rule for
        the nonlinearity, precision, memory.
        """
        check_keywords(Lens.maps, options)
        inputs, others = split_keywords(options, RawInput)
        chosen = AnalysisOptions(**others)
        items, many = encode_input(self, RawInput(text, target, **inputs))
        warn_of_padding(self, items)
        if out is not None and many:
            raise InputError("`out` takes the maps of one text; call it for each of several")
        with batches.layers_shown(progress, self.device.type) as advance:
            results = self.analyse(items, chosen, out=out, overwrite=overwrite, progress=advance)
        return results if many else results[0]

    @overload
    def explain(
        self,
        text: Text | Chat | Signal,
        *,
        target: Target | None = ...,
        contrast: Target | None = ...,
        position: int | None = ...,
        direction: Direction | None = ...,
        **options: Unpack[keywords.QuestionKeywords],
    ) -> Explanation: ...

    @overload
    def explain(
        self, text: Text, *, position: Literal["all"], **options: Unpack[keywords.QuestionKeywords]
    ) -> Explanations: ...

    @overload
    def explain(
        self,
        text: Side,
        *,
        target: Side | None = ...,
        token: Literal["all"],
        **options: Unpack[keywords.QuestionKeywords],
    ) -> Explanations: ...

    @overload
    def explain(
        self, text: Given | None = ..., **options: Unpack[keywords.AnyQuestionKeywords]
    ) -> Explanation | Explanations | list[Explanation | Explanations]: ...

    @shows_fields_of(ExplainOptions)
    @shows_fields_of(RawInput, without=("source",), before="progress")
    @shortage_explained("this explanation", SMALLER)
    def explain(
        self,
        text: Given | None = None,
        *,
        target: Targets | Side = None,
        contrast: Targets = None,
        token: Tokens = None,
        position: Positions = None,
        direction: Direction | None = None,
        layer: int | None = None,
        score: str | None = None,
        by: str | None = None,
        generate: int | None = None,
        generation: Mapping[str, object] | None = None,
        progress: Progress | bool | None = None,
        **options: Unpack[keywords.ExplainKeywords],
    ) -> Explanation | Explanations | list[Explanation | Explanations]:
        """Trace a score to every input token, exactly for the frozen network, in one backward pass.

        `target` is what the score is about: the next token of a causal model, the token at the
        mask of a masked one, a classifier's label; a word, a label or an index; by default what the
        model says. `contrast` asks why the target and not that. `position` is where the score is
        read, "all" explains each next token of a text in turn. `direction` is a vector that is read
        at `position` behind layer `layer`, or behind the model's last step. A list of texts,
        targets, contrasts or positions gives a list. `progress` is called with the layers done and
        the layers on the way, after each layer of each batch; what it raises ends the work. True
        shows a bar, False none, and the default is as in `maps`.

        A target of several tokens behind a causal model's text is an answer, which is explained as
        a whole: its log-probability (`score` may be "logit"; of a single token it is), at all of
        its positions in one backward pass. The score that its parts sum to is Σ_t (z_{t,y_t} −
        Σ_v p_{t,v} z_{t,v}), with the probabilities p held. With `generate` the model answers
        itself, with so many tokens at most and always the likeliest; `generation` are other options
        of its method ``generate``. `by` explains each "sentence", "paragraph" or "token" of the
        answer. A text may be a chat: messages with a role and content, as the tokenizer's template
        writes them; or {"messages": …} with more for the template, such as tools.

        Of an encoder–decoder, `text` is the source and `target` the decoder's text (a text or its
        words; None: the one that the model generates), and `token` says which of the target's
        tokens is explained: its place from 0, a word, or "all", each in turn; by default the last.
        `contrast` asks why that token and not another in its place. Source and prefix are given as
        to `maps`, with a list of pairs for several. Pictures and sounds are given as to `maps`,
        too, and patches or frames are the tokens.

        The other options are those of `normlens.options.ExplainOptions`, which explains
        them: the rule for activations, flow maps by layer, head and scope, memory.
        """
        check_keywords(Lens.explain, options)
        inputs, others = split_keywords(options, RawInput)
        chosen = ExplainOptions(**others)
        given = RawInput(text, target, **inputs)
        answers = AnswerOptions(score, by, generate, generation)
        if self.two_stacks:
            if answers.given:
                raise InputError(
                    f"{self.name} is an encoder–decoder: leave score, by and generate out; without "
                    "a target it generates one"
                )
            if any(each is not None for each in (position, direction, layer)):
                raise InputError(
                    f"{self.name} is an encoder–decoder: say which token of its target is "
                    "explained with token=…, not with position, direction or layer"
                )
            read_head(self.adapter)  # before the model generates, which it could not without one
        elif token is not None:
            raise InputError(
                f"token=… names a token of an encoder–decoder's target; {self.name} reads one "
                "sequence: ask with target=… and position=…"
            )
        else:
            given = replace(given, target=None)  # here it is the word that is explained
        items, many = encode_input(self, given)
        warn_of_padding(self, items)
        with batches.layers_shown(progress, self.device.type) as advance:
            return ask(
                self,
                items,
                many,
                chosen,
                advance,
                target=None if self.two_stacks else target,
                contrast=contrast,
                position=token if self.two_stacks else position,
                direction=direction,
                layer=layer,
                answers=answers,
            )

    @shows_fields_of(CiteOptions)
    @shortage_explained("this citation", SMALLER)
    def cite(
        self,
        question: str,
        sources: str | Sequence[str],
        answer: str | None = None,
        *,
        progress: Progress | bool | None = None,
        **options: Unpack[keywords.CiteKeywords],
    ) -> Citation:
        """Which sources made an answer, exactly for the frozen network, in one backward pass.

        `sources` is a list of texts, or one text, which is split; the model answers where no
        `answer` is given. Sources and question are a message of the user in the model's chat
        template, if it has one. Every token's part of the answer's log-probability is exact, and so
        is a source's, the sum over its tokens; `ablations` sharpen what is expected if a source is
        left out. `progress` is called with the layers done and the layers on the way; True shows a
        bar, False none, and the default is as in `maps`. The other options are those of
        `normlens.options.CiteOptions`, which explains them.
        """
        check_keywords(Lens.cite, options)
        prompt = prepared(self, question, sources, answer, CiteOptions(**options))
        with batches.layers_shown(progress, self.device.type) as advance:
            return cite(prompt, advance)

    @overload
    def cosine(self, a: str, b: str, **options: Unpack[keywords.PairKeywords]) -> Cosine: ...

    @overload
    def cosine(
        self, a: list[tuple[str, str]], **options: Unpack[keywords.PairKeywords]
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
        **options: Unpack[keywords.CosineKeywords],
    ) -> Cosine | list[Cosine]:
        """Which tokens made the cosine of two texts' vectors; a list of pairs gives a list.

        The model's vectors of a text become one as its sentence-transformers files say (mean, cls
        or last token, Dense maps), or by their mean where there are none. `progress` is called with
        the layers done and all layers as the tokens pass them; what it raises ends the work. True
        shows a bar, False none, and the default is as in `maps`. The other options are those of
        `normlens.options.CosineOptions`.
        """
        check_keywords(Lens.cosine, options)
        chosen = CosineOptions(**options)
        pairs, many = search.text_pairs(a, b)
        search.check_texts(pairs, self.pooling)
        if isinstance(self.adapter, SignalEncoder):
            raise InputError(f"{self.name} reads pictures or sound; cosines are of two texts")
        encoded = self.encode([text for pair in pairs for text in pair], truncate=truncate)
        together = list(zip(encoded[::2], encoded[1::2], strict=True))
        with batches.layers_shown(progress, self.device.type) as advance:
            results = search.cosines(self, self.pooling, together, chosen, advance)
        return results if many else results[0]

    @shows_fields_of(ScoreOptions)
    def score(
        self,
        query: str,
        document: str,
        *,
        document_lens: Lens | None = None,
        truncate: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[keywords.ScoreKeywords],
    ) -> Score:
        """Which words made the score of a query and a document, as a search model computes it.

        What kind of model it is, its prompts and its similarity are read from its
        sentence-transformers files, or the object that it came in. `document_lens` is a lens on the
        model that reads documents, where it is another one than this, which reads queries. The
        other options are those of `normlens.options.ScoreOptions`.
        """
        check_keywords(Lens.score, options)
        ranking = self.rank(
            query,
            [document],
            document_lens=document_lens,
            truncate=truncate,
            progress=progress,
            **options,
        )
        return ranking[0]

    @shows_fields_of(ScoreOptions)
    @shortage_explained("these scores", SMALLER)
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        document_lens: Lens | None = None,
        truncate: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[keywords.ScoreKeywords],
    ) -> Ranking:
        """The scores (`score`) of several documents, the best first, and why one is above another.

        ``ranking.why_above(0, 1)`` is the difference of the first two, word by word.
        """
        check_keywords(Lens.rank, options)
        chosen, listed = ScoreOptions(**options), search.check_documents(query, documents)
        with batches.layers_shown(progress, self.device.type) as advance:
            found = search.scores(
                self,
                query,
                listed,
                chosen,
                document_lens=document_lens,
                truncate=truncate,
                progress=advance,
            )
        places = sorted(range(len(found)), key=lambda place: -found[place].value)
        return Ranking([found[place] for place in places], places)

    # What it works with --------------------------------------------------------------------------

    @shows_fields_of(RawInput, without=("source", "target", *_OF_TWO_STACKS))
    def encode(
        self,
        text: Text | Texts | Chat | Signal | list[Signal] | None = None,
        **options: Unpack[keywords.EncodeKeywords],
    ) -> list[Encoded]:
        """Texts, token ids, pictures or sounds as `analyse` takes them."""
        check_keywords(Lens.encode, options)
        encoded, _ = encode_one(self, RawInput(text, **options))
        warn_of_padding(self, encoded)
        return encoded

    @shows_fields_of(RawInput, without=("token_type_ids", "sampling_rate"))
    def encode_pairs(
        self,
        source: Side | list[str] | list[SourceTarget] | SourceTarget | None = None,
        target: Side | None = None,
        **options: Unpack[keywords.EncodePairsKeywords],
    ) -> list[Encoded]:
        """Sources and targets of an encoder–decoder as `analyse` takes them; see `maps`."""
        check_keywords(Lens.encode_pairs, options)
        pairs, _ = encode_pairs(self, RawInput(source, target, **options))
        warn_of_padding(self, pairs)
        return pairs

    @shortage_explained("this analysis", SMALLER)
    def analyse(
        self,
        encoded: Sequence[Encoded],
        options: AnalysisOptions = AnalysisOptions(),
        *,
        arrays: bool = True,
        correlations: bool = False,
        out: str | PathLike[str] | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> list[Maps]:
        """Maps of sequences, or pairs of them, that are tokenised already (`encode`).

        `correlations` adds Spearman's ρ between all scopes, ranked on the model's device. Without
        `arrays` the maps themselves stay there, and only what was made of them is returned. `out`
        and `overwrite` are those of `maps`.
        """
        if out is not None:
            check_out(out, encoded, options.origin)
        check_stacks(self, encoded)
        transfer = DeviceTransfer(self.device) if self.device.type == "cuda" else None
        stacks = stacks_of(self, options, arrays, correlations)
        call = Call(self, options, stacks, self._products, progress, transfer)
        for stack in stacks if options.memory_limit is not None else ():
            check_memory_limit(self, stack, encoded)
        if self._products is not None:
            refresh_products(self._products, self, call.layers)
        if out is not None:
            return [call.write(encoded[0], out, overwrite)]
        return call.maps(encoded, options.batch_size)

    @shortage_explained("products of this model's weights", "give prepare a lower memory_limit")
    def prepare(self, *, memory_limit: int | float | str | None = None) -> Lens:
        """Form products of weights once and use them for every text from now on; returns the lens.

        It pays for many short texts: what is formed here costs as much as a text of about as many
        tokens as a head is wide. `memory_limit` ("512MB", the default) bounds the products in
        memory; layers beyond it are done as before. The numbers of a prepared lens differ in their
        last digits from those of one that is not, and depend on nothing else that came before.
        Weights that change later are noticed by their content. Calling it again changes nothing.
        """
        limit = parse_bytes(memory_limit) or DEFAULT_PREPARED
        products = self._products
        if products is None or products.limit != limit:
            products = ProductStore(limit)
        refresh_products(products, self, range(self.n_layers))
        self._products = products
        return self
