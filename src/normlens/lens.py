"""A lens on a model: from texts to maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens import scopes as scope_names
from normlens.analysis import special_dimensions
from normlens.checks import Checks
from normlens.collect import CORRELATIONS, Collected, versions
from normlens.components import Layer
from normlens.decomposition import RULES, Settings, decompose_layer
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.costs.batches import affordable_sequences, sequence_memory
from normlens.decomposition.engine import AUTO, PRECISIONS
from normlens.decomposition.least import check_limit
from normlens.decomposition.memory import (
    DEFAULT_LIMIT,
    DEFAULT_PREPARED,
    is_out_of_memory,
    parse_bytes,
)
from normlens.decomposition.projections import ProductStore
from normlens.errors import (
    CompletenessError,
    InputError,
    MemoryLimitError,
    ModelLoadError,
    UnsupportedModelError,
    valid_choice,
)
from normlens.maps import Correlations, Maps
from normlens.models import adapt
from normlens.models.readiness import padding_spoils
from normlens.text import Encoded, Text, check_token_types, encode_ids, encode_texts, pad
from normlens.trace import LayerTrace, trace
from normlens.turns import alone_with_model

#: Largest relative error of parts + bias against the model's own vectors, by the model's dtype.
TOLERANCE = {
    torch.float64: 1e-4,  # many models compute their norms and softmax in float32 regardless
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

#: Largest error of the sum of a kernel's parts, by the precision of its products, and of sampled
#: norms beside their recomputation.
KERNEL_TOLERANCE = {"float32": 1e-4, "tf32": 1e-3, "bfloat16": 5e-3}
SAMPLE_TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "bfloat16": 3e-2}

#: Called with the layers that are done and the layers asked for.
Progress = Callable[[int, int], None]


class Lens:
    """A model seen through its attribution maps. Made by `normlens.load`."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        revision: str | None = None,
    ):
        self.adapter = adapt(model)
        self.model: Any = self.adapter.model
        self.tokenizer = None if tokenizer is False else tokenizer
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.revision = revision or getattr(model.config, "_commit_hash", None)
        self._products: ProductStore | None = None
        _check_finite(self.model, self.name)

    # What the model is --------------------------------------------------------------------------

    @property
    def model_type(self) -> str:
        return self.adapter.config.model_type

    @property
    def causal(self) -> bool:
        return self.adapter.causal

    @cached_property
    def _layers(self) -> list[Layer]:
        layers = [self.adapter.layer(block) for block in self.adapter.blocks()]
        if len({layer.scopes for layer in layers}) != 1:
            raise UnsupportedModelError(
                f"the layers of {self.name} differ in their components; NormLens needs them alike"
            )
        return layers

    @property
    def n_layers(self) -> int:
        return len(self._layers)

    @property
    def scopes(self) -> list[str]:
        """Every scope of this model's layers."""
        return list(self._layers[0].scopes)

    @property
    def component_sequence(self) -> str:
        # The first layer of ModernBERT lacks a norm that all others have.
        return self._layers[-1].component_sequence

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

    def maps(
        self,
        text: Text | list[Any] | None = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        scopes: str | Iterable[str] | None = None,
        layers: int | Iterable[int] | None = None,
        heads: bool = False,
        statistics: bool = False,
        nonlinearity: str = "ig",
        batch_size: int | str = "auto",
        memory_limit: int | float | str | None = None,
        truncate: bool = False,
        samples: int = 64,
        seed: int = 0,
        precision: str = AUTO,
        progress: Progress | None = None,
    ) -> Any:
        """Attribution maps (`Maps`) of a text or a pair of texts (a tuple); a list gives a list.

        `scopes` and `layers` (from 0; negative from the end) choose; `heads` adds head-level ATTN
        maps. `nonlinearity` is the rule for the feed-forward activation: "ig", "ig-bias",
        "gradient" or "shapley" (`samples` permutations, `seed`; the maps' `standard_error` is that
        of each norm). `memory_limit` ("512MB") bounds what the feed-forward stage may take beside
        inputs and outputs; `truncate` accepts the beginning of a text that is too long.
        `statistics` adds what the papers measure of the feed-forward block's vectors. `precision`
        is that of the feed-forward products on a GPU: "float32" (the default), "tf32" or
        "bfloat16"; the maps' provenance says which it was. `progress` is called with the layers
        done and the layers asked for, after each layer of each batch; what it raises ends the
        analysis.
        """
        encoded, many = self._encode(text, input_ids, attention_mask, token_type_ids, truncate)
        done = self.analyse(
            encoded,
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
            progress=progress,
        )
        return done if many else done[0]

    def analyse(
        self,
        encoded: Sequence[Encoded],
        *,
        scopes: str | Iterable[str] | None = None,
        layers: int | Iterable[int] | None = None,
        heads: bool = False,
        statistics: bool = False,
        nonlinearity: str = "ig",
        batch_size: int | str = "auto",
        memory_limit: int | float | str | None = None,
        samples: int = 64,
        seed: int = 0,
        precision: str = AUTO,
        arrays: bool = True,
        correlations: bool = False,
        progress: Progress | None = None,
    ) -> list[Maps]:
        """Maps of sequences that are tokenised already; options as in `maps`.

        `correlations` adds Spearman's ρ between all scopes, ranked on the model's device. Without
        `arrays` the maps themselves stay there, and only what was made of them is returned.
        """
        request = Request(
            scopes=scope_names.resolve_all(scopes, self.scopes),
            layers=self._layer_indices(layers),
            settings=Settings(
                rule=valid_choice(nonlinearity, RULES, "rule for the nonlinearity"),
                heads=heads,
                statistics=statistics,
                memory_limit=parse_bytes(memory_limit) or DEFAULT_LIMIT,
                samples=_at_least_one(samples, "samples"),
                seed=_whole(seed, "seed"),
                precision=valid_choice(precision, PRECISIONS, "precision"),
            ),
            arrays=arrays,
            correlations=correlations,
            progress=progress,
        )
        if memory_limit is not None:
            check_limit(
                request.settings.memory_limit or DEFAULT_LIMIT,
                [self._layers[index] for index in request.layers],
                [len(sequence) for sequence in encoded],
                self.scopes if statistics else request.scopes,
                request.settings.rule,
                self.compute_dtype.itemsize,
            )
        if self._products is not None:
            self._refresh(self._products, request.layers)
        results: list[Maps | None] = [None] * len(encoded)
        for indices, found in self._results(encoded, batch_size, request):
            for index, maps in zip(indices, found, strict=True):
                results[index] = maps
        return [maps for maps in results if maps is not None]

    def _results(
        self, encoded: Sequence[Encoded], batch_size: int | str, request: Request
    ) -> Iterator[tuple[list[int], list[Maps]]]:
        """Each batch's places and maps. A GPU works on the next one while the last is packed up."""
        waiting: list[tuple[list[int], Callable[[], list[Maps]]]] = []
        for indices in self._batches(encoded, batch_size):
            waiting.append((indices, self._analyse([encoded[i] for i in indices], request)))
            while len(waiting) > (0 if self.device.type == "cpu" else 1):
                places, finish = waiting.pop(0)
                yield places, finish()
        for places, finish in waiting:
            yield places, finish()

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

    # How ----------------------------------------------------------------------------------------

    def _refresh(self, products: ProductStore, layers: Iterable[int]) -> None:
        """Bring what is kept of these layers up to date with the model's weights."""

        def refresh() -> None:
            blocks = list(self.adapter.blocks())
            described = {block: self.adapter.layer(block) for block in blocks}
            wanted = {blocks[layer] for layer in layers}
            products.refresh(described, wanted, self.compute_dtype)

        alone_with_model(self.model, refresh)

    def _encode(
        self, text: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any, truncate: bool
    ) -> tuple[list[Encoded], bool]:
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
        texts = text if many else [text]
        return encode_texts(texts, self.tokenizer, self.max_tokens, truncate, vocabulary), many

    def _layer_indices(self, layers: int | Iterable[int] | None) -> list[int]:
        count = self.n_layers
        if layers is None or (isinstance(layers, str) and layers == "all"):
            return list(range(count))
        listed = isinstance(layers, Iterable) and not isinstance(layers, str)
        chosen: list[Any] = list(layers) if listed else [layers]  # type: ignore[arg-type]
        for layer in chosen:
            if not isinstance(layer, (int, np.integer)) or not -count <= layer < count:
                raise InputError(
                    f"layer {layer!r} is out of range; {self.name} has layers 0 to {count - 1}"
                )
        if not chosen:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        return sorted({int(layer) % count for layer in chosen})

    def _batches(self, encoded: Sequence[Encoded], batch_size: int | str) -> Iterator[list[int]]:
        """Indices of sequences to run together, alike in length."""
        if batch_size == "auto":
            size = self._affordable(max(map(len, encoded), default=1))
        elif isinstance(batch_size, (int, np.integer)):
            size = _at_least_one(batch_size, "batch_size")
        else:
            raise InputError(f"batch_size is a number or 'auto', not {batch_size!r}")
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        for start in range(0, len(order), size):
            together = order[start : start + size]
            if padding_spoils(self._layers, self.dtype, [len(encoded[i]) for i in together]):
                yield from ([index] for index in together)
            else:
                yield together

    def _affordable(self, n: int) -> int:
        """How many sequences of n tokens are run together on the model's device.

        Where memory is short for other reasons, the batch is halved.
        """
        attention = self._layers[0].attention
        d = attention.output.weight.shape[1]
        each = sequence_memory(n, attention.heads, d, self.compute_dtype.itemsize)
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        return affordable_sequences(self.device, weights, each)

    def _analyse(self, batch: list[Encoded], request: Request) -> Callable[[], list[Maps]]:
        """Launch one batch and return what gives its maps; halved where memory runs out."""
        try:
            collected = self._launch(batch, request)
        except (RuntimeError, MemoryError) as error:
            self._check_memory(error, batch)
            return lambda: self._halves(batch, request)

        def finish() -> list[Maps]:
            try:
                return self._finish(batch, collected, request)
            except (RuntimeError, MemoryError) as error:
                self._check_memory(error, batch)
            return self._halves(batch, request)

        return finish

    def _halves(self, batch: list[Encoded], request: Request) -> list[Maps]:
        half = len(batch) // 2
        parts = batch[:half], batch[half:]
        return [maps for part in parts for maps in self._analyse(part, request)()]

    def _check_memory(self, error: BaseException, batch: list[Encoded]) -> None:
        """Raise unless fewer sequences at once may help."""
        if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
            raise error
        if len(batch) == 1:
            raise MemoryLimitError(
                f"{len(batch[0])} tokens do not fit into the memory of {self.device}; use a "
                "shorter text, fewer layers, or another device (`normlens estimate` says what it "
                "needs)"
            )

    def _launch(self, batch: list[Encoded], request: Request) -> Collected:
        """Run the model and the algebra; on a GPU the results are not there yet."""
        lengths = [len(sequence) for sequence in batch]
        checks = Checks(self.adapter, self.dtype, lengths)
        collected = Collected(lengths, request.scopes, checks, request.arrays, request.correlations)
        products = self._products

        def consume(traced: LayerTrace) -> None:
            dtype = self.compute_dtype
            layer = traced.layer.to(dtype)
            checks.add(traced, layer)
            result = decompose_layer(
                layer,
                traced.x.to(dtype),
                traced.alpha.to(dtype),
                lengths,
                request.scopes,
                request.settings_of(traced.index),
                traced.real,
                None if products is None else products.of(traced.block),
                request.buffers,
                _ordinary_dimensions(layer) if request.settings.statistics else None,
            )
            collected.add(result, traced.index, layer)
            if request.progress is not None:
                request.progress(request.layers.index(traced.index) + 1, len(request.layers))

        # A caller's autocast would run the model in one precision and the algebra in another.
        with _without_autocast(self.device):
            trace(self.adapter, self._inputs(batch), request.layers, consume)
        return collected

    def _finish(self, batch: list[Encoded], collected: Collected, request: Request) -> list[Maps]:
        """Check a batch's results and pack them up."""
        collected.checks.judge()
        errors = collected.errors()
        self._check_completeness(errors)
        self._check_kernel(collected.kernel_errors(), collected.precision)
        worst = max((error for _, _, error in errors), default=math.nan)  # weights have no parts
        return [
            self._maps(sequence, found, collected, worst, request)
            for sequence, found in zip(batch, collected.sequences(), strict=True)
        ]

    @property
    def _pad_id(self) -> int:
        """Any id will do under the mask; some configurations name none, or −1."""
        pad_id = getattr(self.adapter.config, "pad_token_id", None)
        return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0

    def _inputs(self, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        inputs = pad(batch, self._pad_id, self.device)
        # A tokenizer may give types that its model does not know.
        types = {kind for sequence in batch for kind in sequence.type_ids or ()}
        if types and max(types) >= self.adapter.token_types():
            del inputs["token_type_ids"]
        return inputs

    def _check_completeness(self, errors: Sequence[tuple[int, str, float]]) -> None:
        tolerance = TOLERANCE[self.dtype]
        for index, scope, error in errors:
            if not error <= tolerance:
                component = scope_names.components_of(scope)[-1]
                raise CompletenessError(
                    f"parts and bias miss the real hidden state in layer {index} at its "
                    f"{component} (scope {scope}): relative error {error:.1e}, tolerance "
                    f"{tolerance:.0e} for {str(self.dtype).removeprefix('torch.')}; "
                    "the model may differ from its family, or its values overflow"
                )

    def _check_kernel(
        self, errors: Sequence[tuple[int, str, float]], precision: str | None
    ) -> None:
        for index, kind, error in errors:
            tolerances = KERNEL_TOLERANCE if kind == "sum" else SAMPLE_TOLERANCE
            tolerance = tolerances[str(precision)]
            if not error <= tolerance:
                what = "do not add up" if kind == "sum" else "miss an exact recomputation"
                raise CompletenessError(
                    f"the parts behind the feed-forward block of layer {index} {what}: "
                    f"relative error {error:.1e}, tolerance {tolerance:.0e} for {precision}; "
                    'take another `precision`, or device="cpu"'
                )

    def _maps(
        self,
        sequence: Encoded,
        found: Mapping[str, dict[str, NDArray]],
        collected: Collected,
        completeness: float,
        request: Request,
    ) -> Maps:
        settings = request.settings
        provenance = {
            "model": self.name,
            "revision": self.revision,
            "model_type": self.model_type,
            "components": self.component_sequence,
            "causal": self.causal,
            "nonlinearity": settings.rule,
            "completeness": completeness,
            "tolerance": TOLERANCE[self.dtype],
            "dtype": str(self.dtype).removeprefix("torch."),
            "compute_dtype": str(self.compute_dtype).removeprefix("torch."),
            "precision": collected.precision,
            "device": str(self.device),
            "versions": versions(),
        }
        if (outside := self.adapter.outside_scopes()) is not None:
            provenance["outside_scopes"] = outside
        if settings.rule == "shapley":
            provenance |= {"samples": settings.samples, "seed": settings.seed}
        arrays = found.get("arrays", {})
        rho = found.get(CORRELATIONS, {}).get(CORRELATIONS)
        return Maps(
            arrays={scope: arrays[scope] for scope in request.scopes if scope in arrays},
            raw_tokens=sequence.tokens,
            layers=request.layers,
            allowed=collected.allowed(len(sequence)),
            completeness=completeness,
            provenance=provenance,
            mixing=found.get("mixing", {}),
            heads=found.get("heads", {}),
            standard_error=found.get("standard_error", {}),
            statistics=found.get("statistics", {}),
            correlations=None if rho is None else Correlations(request.scopes, rho),
            token_ids=sequence.ids,
            special=sequence.special,
            token_words=sequence.words,
            word_labels=sequence.word_labels,
            text=sequence.text,
        )


@dataclass(frozen=True)
class Request:
    """What one call of `Lens.maps` asks for."""

    scopes: list[str]
    layers: list[int]
    settings: Settings
    arrays: bool = True
    correlations: bool = False
    progress: Progress | None = None
    buffers: Buffers = field(default_factory=Buffers)  # of this call alone

    def settings_of(self, layer: int) -> Settings:
        """The settings of one layer: kernels are sampled in the first and the last one."""
        sampled = layer in (self.layers[0], self.layers[-1])
        return self.settings if sampled else replace(self.settings, sample_kernels=False)


def _ordinary_dimensions(layer: Layer) -> Tensor | None:
    """Every dimension but the special ones of the norm behind the feed-forward block."""
    norm = layer.norm_behind_feed_forward
    return None if norm is None or norm.gamma is None else special_dimensions(norm.gamma)[1]


@contextmanager
def _without_autocast(device: torch.device) -> Iterator[None]:
    """Switch a caller's autocast off; a device that knows none (meta) needs nothing."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


def _whole(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{what} must be a whole number, not {value!r}")
    return int(value)


def _at_least_one(value: int, what: str) -> int:
    if _whole(value, what) < 1:
        raise InputError(f"{what} must be at least 1, not {value}")
    return int(value)


def _check_finite(model: nn.Module, name: str) -> None:
    """Weights with NaN or infinity give maps without meaning."""
    for key, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.is_meta:
            continue
        # The sum is finite unless a value is not; it needs no copy of the weights.
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float64)):
            raise ModelLoadError(
                f"the weights of {name} hold values that are not finite (in {key!r}); "
                "load another checkpoint"
            )
