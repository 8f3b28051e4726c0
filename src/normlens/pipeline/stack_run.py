"""One batch in one stack of layers: traced layers in, labelled maps out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.norm_maps import LayerMaps, decompose_layer
from normlens.gpu.matmul import operands_kept
from normlens.gpu.transfer import current
from normlens.inputs.text import Encoded, Text
from normlens.layers import Layer
from normlens.measures import special_dimensions
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import AUTO, AnalysisOptions, Request, Settings
from normlens.pipeline.batches import (
    TOLERANCE,
    check_completeness,
    check_kernels,
    check_range,
    chosen_scopes,
    components_in_words,
    provenance,
    scopes_of,
)
from normlens.pipeline.collect import COMPLETENESS, KERNELS, PEAKS, Collected
from normlens.pipeline.layer_results import CORRELATIONS, ROUTING, Columns
from normlens.results.axes import Routing, TokenAxis
from normlens.results.maps import Maps
from normlens.scopes import is_among, resolve
from normlens.trace.checks import Checks, Deferred
from normlens.trace.run import LayerTrace

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pipeline.call import Analyser


# What one call asks of each stack of layers: all of a model's, or its encoder's and decoder's.


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another, and what is asked of them."""

    layers: Sequence[Layer]
    request: Request  # its layers count from this stack's first
    first: int = 0  # the place of the stack's first layer among all that the model runs
    name: str = ""  # `ENCODER` or `DECODER`; empty: the model has no other

    @property
    def layer_in_words(self) -> str:
        """How errors call a layer of this stack."""
        return f"{self.name} layer" if self.name else "layer"


def stacks_of(
    lens: Lens, options: AnalysisOptions, arrays: bool, correlations: bool
) -> tuple[Stack, ...]:
    """What `options` ask of a lens's stacks; an encoder of which nothing is asked is left out."""

    def request(scopes: list[str], layers: list[int]) -> Request:
        settings = options.settings
        return Request(
            scopes, layers, settings, arrays, correlations, options.origin, options.map_dtype
        )

    if not isinstance(lens.adapter, TwoStacks):
        layers = options.layers_of(lens.n_layers, lens.name)
        scopes = chosen_scopes(options, lens.layers, layers, lens.name)
        return (Stack(lens.layers, request(scopes, layers)),)
    both = layers_by_stack(lens.adapter, lens.layers)
    asked = []
    for name, layers_of_stack in both.items():
        chosen = _layers(options, layers_of_stack, both)
        here = [layers_of_stack[index] for index in chosen]
        asked.append((name, chosen, _scopes(options, here, lens.layers)))
    stacks, first = [], 0
    for (name, layers, scopes), all_layers in zip(asked, both.values(), strict=True):
        if layers and scopes:
            stacks.append(Stack(all_layers, request(scopes, layers), first, name))
        first += len(all_layers)
    if not stacks or stacks[-1].name != DECODER:
        raise InputError(
            "only layers or scopes of the encoder are asked for; ask for some of the decoder's, "
            f"too: {', '.join(scopes_of(both[DECODER]))} in its {len(both[DECODER])} layers"
        )
    return tuple(stacks)


def layers_by_stack(adapter: TwoStacks, layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """The layers of an encoder–decoder, which it runs one stack after the other, by stack."""
    count = len(adapter.encoder_blocks())
    return {ENCODER: list(layers[:count]), DECODER: list(layers[count:])}


def _layers(
    options: AnalysisOptions, here: Sequence[Layer], both: dict[str, list[Layer]]
) -> list[int]:
    """The chosen layers that this stack has; one that no stack has is an error."""
    longest = max(both, key=lambda name: len(both[name]))
    options.layers_of(len(both[longest]), f"its {longest}")
    if options.layers is None or isinstance(options.layers, str):
        return list(range(len(here)))
    listed = options.layers if isinstance(options.layers, Iterable) else [options.layers]
    inside = [int(layer) for layer in listed if -len(here) <= layer < len(here)]
    return replace(options, layers=inside).layers_of(len(here), "") if inside else []


def _scopes(
    options: AnalysisOptions, here: Sequence[Layer], everywhere: Sequence[Layer]
) -> list[str]:
    """The chosen scopes that these layers have; short names mean scopes of this stack."""
    available = scopes_of(here)
    if options.scopes is None or options.scopes == "all":
        return options.scopes_of(available)
    names = [options.scopes] if isinstance(options.scopes, str) else list(options.scopes)
    meant = [name for name in names if is_among(name, available)]
    for name in names:
        if not any(is_among(name, layer.scopes) for layer in everywhere):
            resolve(name, scopes_of(everywhere))  # raises, and lists them all
    return [] if names and not meant else replace(options, scopes=meant).scopes_of(available)


# One batch in one stack: its layers are taken apart as the model runs them, checked, and packed.


def _routing(
    sequence: Encoded, arrays: Mapping[str, NDArray[Any]], collected: Collected
) -> Routing | None:
    """The experts that a sequence's tokens used, in the layers of its maps."""
    if not arrays:
        return None
    layers = collected.covered[ROUTING, "experts"]
    tokens = token_axis(sequence).tokens
    shared = arrays.get("shared")
    routing = Routing(
        layers, arrays["experts"], arrays["weights"], collected.experts, tokens, shared
    )
    return routing.of_layers(collected.layers)


def token_axis(sequence: Encoded) -> TokenAxis:
    """The tokens of a sequence as labels of an axis."""
    return TokenAxis(
        sequence.tokens, sequence.ids, sequence.special, sequence.words, sequence.word_labels
    )


def _columns(sequence: Encoded, others: TokenAxis | None) -> dict[str, Any]:
    """The labels of columns that are another sequence's tokens, then the text's own."""
    if others is None:
        return {}
    m, n = len(others), len(sequence)
    return {
        "source_axis": others.followed_by(token_axis(sequence)),
        "same_token": np.eye(n, m + n, k=m, dtype=bool),
    }


class StackRun:
    """What a batch's sequences need in a stack, and what its layers have given so far.

    `others` are the tokens of another sequence that each of them reads, if they read one.
    """

    def __init__(
        self,
        call: Analyser,
        stack: Stack,
        sequences: Sequence[Encoded],
        others: Sequence[TokenAxis] = (),
    ):
        self.call, self.lens, self.stack, self.sequences = call, call.lens, stack, sequences
        self.lengths = [len(sequence) for sequence in sequences]
        self.columns = Columns(self.lengths, others)
        self.checks = Checks(
            self.lens.adapter,
            self.lens.dtype,
            self.lengths,
            stack.layer_in_words,
            self.columns.others,
            Deferred(call.transfer),
        )
        self.collected = Collected(
            self.columns,
            stack.request,
            self.checks,
            transfer=call.transfer,
            place=call.place(stack),
            home=self.lens.device,
        )

    def consume(self, traced: LayerTrace) -> None:
        """Take apart a layer that the model has just run; its index counts in this stack."""
        with current(traced.x.device), operands_kept():
            layer = self.check(traced)
            result = self._decomposed(traced, layer)
        self.collected.add(result, traced.index, layer)

    def _decomposed(self, traced: LayerTrace, layer: Layer) -> LayerMaps:
        request, dtype = self.stack.request, self.lens.compute_dtype
        return decompose_layer(
            layer,
            traced.x.to(dtype),
            [alpha.to(dtype) for alpha in traced.alphas],
            self.lengths,
            request.scopes,
            self._settings_of(traced.index),
            traced.real,
            None if self.call.products is None else self.call.products.of(traced.block),
            self.call.buffers,
            _ordinary_dimensions(layer) if request.settings.statistics else None,
            {name: vectors.to(dtype) for name, vectors in traced.sources.items()},
            dict.fromkeys(traced.sources, self.columns.others),
        )

    def check(self, traced: LayerTrace) -> Layer:
        """Compare a layer with what its adapter says; return it in the algebra's precision."""
        layer = traced.layer.to(self.lens.compute_dtype)
        self.columns.check(traced.sources)
        self.checks.add(traced, layer)
        return layer

    def _settings_of(self, layer: int) -> Settings:
        """One layer's settings: kernels are sampled in the first and the last that use them."""
        settings, layers = self.stack.request.settings, self.stack.layers
        stages = [k for k in self.stack.request.layers if layers[k].feed_forward is not None]
        sampled = layer in stages[:1] + stages[-1:]
        return settings if sampled else replace(settings, sample_kernels=False)

    def maps(self, texts: Sequence[Text | None] | None = None) -> list[Maps]:
        """The maps of every sequence, if they are exact; `texts` where a sequence is one of two."""
        collected, words = self.collected, self.stack.layer_in_words
        count = len(self.sequences)
        allowed = [collected.allowed(index) for index in range(count)]  # while a GPU works
        collected.take()
        collected.checks.judge()
        errors = collected.numbers(COMPLETENESS)
        check_completeness(errors, self.lens.dtype, words)
        check_kernels(collected.numbers(KERNELS), collected.precision, words)
        check_range(collected.numbers(PEAKS), words)
        worst = max((error for _, _, error in errors), default=math.nan)  # weights have no parts
        given = texts or [None] * count
        return [
            self._packed(index, results, allowed[index], worst, text)
            for index, (results, text) in enumerate(zip(collected.sequences(), given, strict=True))
        ]

    def _packed(
        self,
        index: int,
        results: Mapping[str, dict[str, NDArray[Any]]],
        allowed: NDArray[np.bool_],
        completeness: float,
        text: Text | None,
    ) -> Maps:
        """The maps of sequence `index`, with the labels that belong to its results."""
        sequence, collected = self.sequences[index], self.collected
        arrays = results.get("arrays", {})
        return Maps(
            arrays={scope: arrays[scope] for scope in collected.scopes if scope in arrays},
            raw_tokens=sequence.tokens,
            layers=collected.layers,
            allowed=allowed,
            completeness=completeness,
            provenance=self._provenance(completeness),
            mixing=results.get("mixing", {}),
            heads=results.get("heads", {}),
            standard_error=results.get("standard_error", {}),
            statistics=results.get("statistics", {}),
            correlations=collected.correlations(results.get(CORRELATIONS, {}).get(CORRELATIONS)),
            token_ids=sequence.ids,
            special=sequence.special,
            token_words=sequence.words,
            word_labels=sequence.word_labels,
            text=sequence.text if text is None else text,
            coverage=collected.coverage(),
            routing=_routing(sequence, results.get(ROUTING, {}), collected),
            grid=sequence.grid,
            **_columns(sequence, self.columns.other_tokens(index)),
        )

    def _provenance(self, completeness: float) -> dict[str, Any]:
        lens, stack, collected = self.lens, self.stack, self.collected
        settings = stack.request.settings
        said = provenance(lens, settings.rule, completeness, TOLERANCE[lens.dtype])
        said |= {"origin": stack.request.origin, "precision": collected.precision}
        if len(collected.devices) > 1:
            said["device"] = ", ".join(map(str, collected.devices))
        if stack.request.map_dtype != AUTO:
            said["map_dtype"] = stack.request.map_dtype
        if stack.name:
            said |= {
                "stack": stack.name,
                "stack_layers": len(stack.layers),
                "components": components_in_words(stack.layers),
                "causal": stack.name == DECODER,
            }
        if (outside := lens.adapter.outside_scopes()) is not None:
            said["outside_scopes"] = outside
        if settings.rule == "shapley":
            said |= {"samples": settings.samples, "seed": settings.seed}
        return said


def _ordinary_dimensions(layer: Layer) -> Tensor | None:
    """Every dimension but the special ones of the norm behind the feed-forward block."""
    norm = layer.norm_behind_feed_forward
    return None if norm is None or norm.gamma is None else special_dimensions(norm.gamma)[1]
