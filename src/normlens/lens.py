"""A lens on a model: from texts to maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normlens.analyser import Analyser, Progress
from normlens.components import Layer
from normlens.cosine import Cosine
from normlens.decomposition.head_products import ProductStore
from normlens.decomposition.least import check_limit, check_vectors_limit
from normlens.decomposition.memory import DEFAULT_LIMIT, DEFAULT_PREPARED, parse_bytes
from normlens.errors import InputError, UnsupportedModelError
from normlens.explain.ask import Positions, Targets, ask
from normlens.explain.cosines import (
    CosineKeywords,
    CosineOptions,
    check_texts,
    cosines,
    text_pairs,
)
from normlens.explain.options import ExplainKeywords, ExplainOptions
from normlens.explanation import Explanation
from normlens.explanations import Explanations
from normlens.maps import Maps
from normlens.models import adapt
from normlens.options import AnalysisKeywords, AnalysisOptions, Request
from normlens.origins import INPUT, LAYER
from normlens.precisions import AUTO
from normlens.sentences import Pooling
from normlens.text import (
    Encoded,
    Ids,
    Text,
    Texts,
    Tokenizer,
    check_token_types,
    encode_ids,
    encode_texts,
)
from normlens.turns import alone_with_model
from normlens.verdicts import check_finite

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Lens:
    """A model seen through its attribution maps. Made by `normlens.load`."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer | Literal[False] | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
        pooling: Callable[[], Pooling] = Pooling,
    ):
        self.adapter = adapt(model)
        self.model: Any = self.adapter.model
        self.tokenizer = None if tokenizer is False else tokenizer
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.revision = revision or getattr(model.config, "_commit_hash", None)
        self._read_pooling = pooling
        self._products: ProductStore | None = None
        check_finite(self.model, self.name)

    # What the model is --------------------------------------------------------------------------

    @property
    def model_type(self) -> str:
        return self.adapter.config.model_type

    @property
    def causal(self) -> bool:
        return self.adapter.causal

    @cached_property
    def layers(self) -> list[Layer]:
        """Every layer as the adapter describes it."""
        layers = [self.adapter.layer(block) for block in self.adapter.blocks()]
        if len({layer.scopes for layer in layers}) != 1:
            raise UnsupportedModelError(
                f"the layers of {self.name} differ in their components; NormLens needs them alike"
            )
        return layers

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def scopes(self) -> list[str]:
        """Every scope of this model's layers."""
        return list(self.layers[0].scopes)

    @property
    def component_sequence(self) -> str:
        # The first layer of ModernBERT lacks a norm that all others have.
        return self.layers[-1].component_sequence

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    @property
    def compute_dtype(self) -> torch.dtype:
        """The algebra runs in float32 at least, whatever the model runs in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the model's positions allow."""
        return self.adapter.max_positions()

    def __repr__(self) -> str:
        return (
            f"Lens({self.name}: {self.model_type}, {self.n_layers} layers of "
            f"{self.component_sequence}, {str(self.dtype).removeprefix('torch.')} on {self.device})"
        )

    # What it shows ------------------------------------------------------------------------------

    @overload
    def maps(
        self,
        text: Text,
        *,
        truncate: bool = ...,
        progress: Progress | None = ...,
        **options: Unpack[AnalysisKeywords],
    ) -> Maps: ...

    @overload
    def maps(
        self,
        text: Texts,
        *,
        truncate: bool = ...,
        progress: Progress | None = ...,
        **options: Unpack[AnalysisKeywords],
    ) -> list[Maps]: ...

    @overload
    def maps(
        self,
        *,
        input_ids: list[int],
        attention_mask: list[int] | None = ...,
        token_type_ids: list[int] | None = ...,
        progress: Progress | None = ...,
        **options: Unpack[AnalysisKeywords],
    ) -> Maps: ...

    @overload
    def maps(
        self,
        *,
        input_ids: list[list[int]],
        attention_mask: list[list[int]] | None = ...,
        token_type_ids: list[list[int]] | None = ...,
        progress: Progress | None = ...,
        **options: Unpack[AnalysisKeywords],
    ) -> list[Maps]: ...

    @overload
    def maps(
        self,
        *,
        input_ids: Ids,
        attention_mask: Ids | None = ...,
        token_type_ids: Ids | None = ...,
        progress: Progress | None = ...,
        **options: Unpack[AnalysisKeywords],
    ) -> Maps | list[Maps]: ...

    def maps(
        self,
        text: Text | Texts | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        scopes: str | Iterable[str] | None = None,
        layers: int | Iterable[int] | None = None,
        heads: bool = False,
        statistics: bool = False,
        nonlinearity: str = "ig",
        batch_size: int | str = AUTO,
        memory_limit: int | float | str | None = None,
        truncate: bool = False,
        samples: int = 64,
        seed: int = 0,
        precision: str = AUTO,
        origin: str = LAYER,
        progress: Progress | None = None,
    ) -> Maps | list[Maps]:
        """Attribution maps (`Maps`) of a text or a pair of texts (a tuple); a list gives a list.

        `scopes` and `layers` (from 0; negative from the end) choose; `heads` adds head-level ATTN
        maps. `nonlinearity` is the rule for the feed-forward activation: "ig", "ig-bias",
        "gradient" or "shapley" (`samples` permutations, `seed`; the maps' `standard_error` is that
        of each norm). `memory_limit` ("512MB") bounds what the feed-forward stage may take beside
        inputs and outputs; `truncate` accepts the beginning of a text that is too long.
        `statistics` adds what the papers measure of the feed-forward block's vectors. `precision`
        is that of the feed-forward products on a GPU: "float32" (the default), "tf32" or
        "bfloat16"; the maps' provenance says which it was. `origin` "input"
        makes the model's input tokens the sources, through all layers before; biases then belong to
        no token. `progress` is called with the layers done and the layers asked for, after each
        layer of each batch; what it raises ends the analysis.
        """
        encoded, many = self._encode(text, input_ids, attention_mask, token_type_ids, truncate)
        options = AnalysisOptions(
            scopes=scopes,
            layers=layers,
            heads=heads,
            statistics=statistics,
            nonlinearity=nonlinearity,
            batch_size=batch_size,
            memory_limit=memory_limit,
            samples=samples,
            seed=seed,
            precision=precision,
            origin=origin,
        )
        done = self.analyse(encoded, options, progress=progress)
        return done if many else done[0]

    def analyse(
        self,
        encoded: Sequence[Encoded],
        options: AnalysisOptions = AnalysisOptions(),
        *,
        arrays: bool = True,
        correlations: bool = False,
        progress: Progress | None = None,
    ) -> list[Maps]:
        """Maps of sequences that are tokenised already (`encode`).

        `correlations` adds Spearman's ρ between all scopes, ranked on the model's device. Without
        `arrays` the maps themselves stay there, and only what was made of them is returned.
        """
        request = Request(
            options.scopes_of(self.scopes),
            options.layers_of(self.n_layers, self.name),
            options.settings,
            arrays,
            correlations,
            options.origin,
        )
        limit, lengths = request.settings.memory_limit or DEFAULT_LIMIT, [*map(len, encoded)]
        if options.memory_limit is not None and options.origin == INPUT:
            check_vectors_limit(limit, self.layers[0], lengths, self.compute_dtype.itemsize)
        elif options.memory_limit is not None:
            check_limit(
                limit,
                [self.layers[index] for index in request.layers],
                lengths,
                self.scopes if options.statistics else request.scopes,
                request.settings.rule,
                self.compute_dtype.itemsize,
            )
        if self._products is not None:
            self._refresh(self._products, request.layers)
        analyser = Analyser(self, request, self._products, progress)
        return analyser.maps(encoded, options.batch_size)

    def explain(
        self,
        text: Text | Texts | None = None,
        *,
        target: Targets = None,
        contrast: Targets = None,
        position: Positions = None,
        direction: Sequence[float] | torch.Tensor | NDArray[np.floating] | None = None,
        layer: int | None = None,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        truncate: bool = False,
        **options: Unpack[ExplainKeywords],
    ) -> Explanation | Explanations | list[Explanation | Explanations]:
        """Trace a score back to every input token, exactly, at the price of one backward pass.

        `target` is what the score is about: the next token of a causal model, the token at the
        mask of a masked one, a classifier's label; a word, a label or an index; by default what the
        model says. `contrast` asks why the target and not that. `position` is where the score is
        read, "all" explains each next token of a text in turn. `direction` is a vector that is read
        at `position` behind layer `layer`, or behind the model's last step. A list of texts,
        targets, contrasts or positions gives a list.

        `nonlinearity` is "ig", "ig-bias" or "gradient"; `flow` keeps how much of the score goes
        where in each layer, `heads` the same by head, `scopes` the same behind these scopes.
        `first_piece` accepts the first token of a target that is several.
        """
        encoded, many = self._encode(text, input_ids, attention_mask, token_type_ids, truncate)
        chosen = ExplainOptions(**options)
        return ask(self, encoded, many, target, contrast, position, direction, layer, chosen)

    @cached_property
    def pooling(self) -> Pooling:
        """How the vectors of a text become one; read where the model lies when it is asked for."""
        return self._read_pooling()

    @overload
    def cosine(
        self, a: str, b: str, *, truncate: bool = ..., **options: Unpack[CosineKeywords]
    ) -> Cosine: ...

    @overload
    def cosine(
        self,
        a: list[tuple[str, str]],
        *,
        truncate: bool = ...,
        **options: Unpack[CosineKeywords],
    ) -> list[Cosine]: ...

    def cosine(
        self,
        a: str | list[tuple[str, str]],
        b: str | None = None,
        *,
        truncate: bool = False,
        **options: Unpack[CosineKeywords],
    ) -> Cosine | list[Cosine]:
        """Which tokens made the cosine of two texts' vectors; a list of pairs gives a list.

        The model's vectors of a text become one as its sentence-transformers files say (mean, cls
        or last token, Dense maps), or by their mean where there are none. `nonlinearity` is "ig",
        "ig-bias" or "gradient"; `memory_limit` ("512MB") bounds what the tokens' vectors may take.
        """
        chosen = CosineOptions(**options)
        pairs, many = text_pairs(a, b)
        check_texts(pairs, self.pooling)
        encoded = self.encode([text for pair in pairs for text in pair], truncate=truncate)
        together = list(zip(encoded[::2], encoded[1::2], strict=True))
        head = self.pooling.head(self.adapter.end(), self.device)
        done = cosines(self, head, self.pooling, together, chosen)
        return done if many else done[0]

    def encode(
        self,
        text: Text | Texts | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        truncate: bool = False,
    ) -> list[Encoded]:
        """Texts, or token ids, as `analyse` takes them."""
        return self._encode(text, input_ids, attention_mask, token_type_ids, truncate)[0]

    def prepare(self, *, memory_limit: int | float | str | None = None) -> Lens:
        """Form products of weights once and use them for every text from now on; returns the lens.

        It pays for many short texts: what is formed here costs as much as a text of about as many
        tokens as a head is wide. `memory_limit` ("512MB", the default) bounds the products in
        memory; layers beyond it are done as before. The numbers of a prepared lens differ in their
        last digits from those of one that is not, and depend on nothing else that came before.
        Weights that change later are noticed by their content. Calling it again changes nothing.
        """
        limit = parse_bytes(memory_limit) or DEFAULT_PREPARED
        if self._products is None or self._products.limit != limit:
            products = ProductStore(limit)
        else:
            products = self._products
        self._refresh(products, range(self.n_layers))
        self._products = products
        return self

    def _refresh(self, products: ProductStore, layers: Iterable[int]) -> None:
        """Bring what is kept of these layers up to date with the model's weights."""

        def refresh() -> None:
            blocks = list(self.adapter.blocks())
            described = {block: self.adapter.layer(block) for block in blocks}
            wanted = {blocks[layer] for layer in layers}
            products.refresh(described, wanted, self.compute_dtype)

        alone_with_model(self.model, refresh)

    def _encode(
        self,
        text: Text | Texts | None,
        input_ids: Ids | None,
        attention_mask: Ids | None,
        token_type_ids: Ids | None,
        truncate: bool,
    ) -> tuple[list[Encoded], bool]:
        """The sequences, and whether they were given as a list."""
        if (text is None) == (input_ids is None):
            raise InputError(
                "pass either a text (or a list of texts) or input_ids=…, one of the two"
            )
        vocabulary = getattr(self.adapter.config, "vocab_size", None)
        if text is None:
            encoded, many = encode_ids(
                input_ids,
                attention_mask,
                token_type_ids,
                self.tokenizer,
                vocabulary,
                self.max_tokens,
            )
            check_token_types(encoded, self.adapter.token_types(), self.name)
            return encoded, many
        many = isinstance(text, list)
        texts = list(text) if isinstance(text, list) else [text]
        return encode_texts(texts, self.tokenizer, self.max_tokens, truncate, vocabulary), many
