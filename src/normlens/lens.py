"""A lens on a model: from texts, pictures and sound to maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import nn

from normlens.advancing import Progress, layers_shown
from normlens.analysing.analyser import Analyser
from normlens.analysing.guard import Guard
from normlens.analysing.limits import check_memory_limit
from normlens.analysing.outbox import Outbox
from normlens.analysing.products import refresh_products
from normlens.analysing.recording import Recordings
from normlens.analysing.stacks import layers_by_stack, stacks_of
from normlens.analysing.unlike_layers import components_in_words, scopes_of
from normlens.analysing.verdicts import check_finite
from normlens.checkpoints.sentences import Pooling
from normlens.components import Layer
from normlens.decomposition.head_products import ProductStore
from normlens.decomposition.memory import DEFAULT_PREPARED
from normlens.encoding import Encodes, Features, encode_any
from normlens.errors import InputError
from normlens.explaining import Explains
from normlens.inputs import check_stacks
from normlens.maps_writing import check_request, write_maps
from normlens.memory_shortage import SMALLER, shortage_explained
from normlens.models import adapt
from normlens.models.offloading import execution_device
from normlens.models.two_stacks import TwoStacks
from normlens.models.unwrapping import name_of_model
from normlens.option_fields import shows_fields_of
from normlens.options import AnalysisKeywords, AnalysisOptions
from normlens.pair_inputs import GivenPairs, SourceTarget
from normlens.pairs import Item
from normlens.parsing import parse_bytes
from normlens.precisions import expected_in_words
from normlens.results.maps import Maps
from normlens.signal_inputs import Signal, takes_signals
from normlens.text import Ids, Text, Texts, Tokenizer
from normlens.text_sides import Side

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TextKeywords(AnalysisKeywords, total=False):
    """Keywords of `Lens.maps` beside a text."""

    truncate: bool
    sampling_rate: int | None
    out: str | PathLike[str] | None
    overwrite: bool
    progress: Progress | bool | None


class IdKeywords(AnalysisKeywords, total=False):
    """Keywords of `Lens.maps` beside token ids."""

    attention_mask: Ids | None
    token_type_ids: Ids | None
    target: Side | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    out: str | PathLike[str] | None
    overwrite: bool
    progress: Progress | bool | None


class Lens(Encodes, Explains):
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
        #: What makes a model's input of pictures or sound; models that read text have a tokenizer.
        self.processor: Tokenizer | None = given if takes_signals(self) else None
        self.tokenizer = None if takes_signals(self) else given
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
        self.guard = Guard(self)
        check_finite(self.model, self.name)

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
        return scopes_of(self.layers)

    @property
    def component_sequence(self) -> str:
        """The order of a layer's components; of each kind of layer where they differ."""
        if not isinstance(self.adapter, TwoStacks):
            return components_in_words(self.layers)
        both = layers_by_stack(self.adapter, self.layers)
        return "; ".join(f"{components_in_words(each)} ({name})" for name, each in both.items())

    @property
    def device(self) -> torch.device:
        return execution_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    @property
    def compute_dtype(self) -> torch.dtype:
        """The algebra runs in float32 at least, whatever the model runs in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the model's positions allow, or the object it came in."""
        return min(filter(None, (self.adapter.max_positions(), self._max_tokens)), default=None)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"Lens({self.name}: {self.model_type}, {self.n_layers} layers of "
            f"{self.component_sequence}, {dtype} on {self.device}{expected_in_words(dtype)})"
        )

    # What it shows ------------------------------------------------------------------------------

    @overload
    def maps(  # type: ignore[overload-overlap] # a text is an iterable of texts, too
        self, text: Text | Signal, **options: Unpack[TextKeywords]
    ) -> Maps: ...

    @overload
    def maps(self, text: Side, target: Side, **options: Unpack[TextKeywords]) -> Maps: ...

    @overload
    def maps(
        self, text: Texts | list[SourceTarget] | list[Signal], **options: Unpack[TextKeywords]
    ) -> list[Maps]: ...

    @overload
    def maps(self, *, input_ids: list[int], **options: Unpack[IdKeywords]) -> Maps: ...

    @overload
    def maps(self, *, input_ids: list[list[int]], **options: Unpack[IdKeywords]) -> list[Maps]: ...

    @overload
    def maps(self, *, input_ids: Ids, **options: Unpack[IdKeywords]) -> Maps | list[Maps]: ...

    @shows_fields_of(AnalysisOptions)
    def maps(
        self,
        text: Text | Texts | Side | list[SourceTarget] | Signal | list[Signal] | None = None,
        target: Side | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        decoder_input_ids: Ids | None = None,
        decoder_attention_mask: Ids | None = None,
        input_features: Features | None = None,
        sampling_rate: int | None = None,
        truncate: bool = False,
        out: str | PathLike[str] | None = None,
        overwrite: bool = False,
        progress: Progress | bool | None = None,
        **options: Unpack[AnalysisKeywords],
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
        chosen = AnalysisOptions(**options)
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
        items, many = encode_any(self, given, token_type_ids, truncate=truncate)
        if out is not None and many:
            raise InputError("`out` takes the maps of one text; call it for each of several")
        with layers_shown(progress, self.device.type) as advance:
            results = self.analyse(items, chosen, out=out, overwrite=overwrite, progress=advance)
        return results if many else results[0]

    @shortage_explained("this analysis", SMALLER)
    def analyse(
        self,
        encoded: Sequence[Item],
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
            check_request(encoded, options.origin, out)
        check_stacks(self, encoded)
        stacks = stacks_of(self, options, arrays, correlations)
        for stack in stacks if options.memory_limit is not None else ():
            check_memory_limit(self, stack, encoded)
        if self._products is not None:
            layers = [stack.first + k for stack in stacks for k in stack.request.layers]
            refresh_products(self._products, self, layers)
        outbox = Outbox(self.device) if self.device.type == "cuda" else None
        analyser = Analyser(self, stacks, self._products, progress, outbox)
        if out is not None:
            return [write_maps(analyser, encoded[0], out, overwrite=overwrite)]
        return analyser.maps(encoded, options.batch_size)

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
