"""A lens on a model: from texts to maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normlens import scopes as scope_names
from normlens.collect import Collected, versions
from normlens.components import Layer
from normlens.decomposition import RULES, decompose_layer
from normlens.decomposition.layer import LayerMaps, Settings
from normlens.decomposition.memory import default_limit, free_memory, is_out_of_memory, parse_bytes
from normlens.decomposition.projections import ProjectionCache
from normlens.errors import (
    CompletenessError,
    InputError,
    MemoryLimitError,
    ModelLoadError,
    UnsupportedModelError,
    valid_choice,
)
from normlens.maps import Maps
from normlens.models import adapt
from normlens.text import Encoded, Text, encode_ids, encode_texts, pad
from normlens.trace import LayerTrace, trace

#: Largest relative error of parts + bias against the model's own vectors, by the model's dtype.
TOLERANCE = {
    torch.float64: 1e-4,  # many models compute their norms and softmax in float32 regardless
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

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
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.revision = revision or getattr(model.config, "_commit_hash", None)
        self._projections = ProjectionCache(0)
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
        progress: Progress | None = None,
    ) -> Any:
        """Attribution maps (`Maps`) of a text or a pair of texts (a tuple); a list gives a list.

        `scopes` and `layers` (from 0; negative from the end) choose; `heads` adds head-level ATTN
        maps. `nonlinearity` is the rule for the feed-forward activation: "ig", "ig-bias",
        "gradient" or "shapley" (`samples` permutations, `seed`). `memory_limit` ("512MB") bounds
        what the feed-forward stage may take beside inputs and outputs; `truncate` accepts the
        beginning of a text that is too long. `statistics` adds what the papers measure of the
        feed-forward block's vectors. `progress` is called with the layers done and the layers
        asked for, after each layer of each batch; what it raises ends the analysis.
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
        progress: Progress | None = None,
    ) -> list[Maps]:
        """Maps of sequences that are tokenised already; options as in `maps`."""
        limit = parse_bytes(memory_limit) or default_limit(self.device)
        # One half for products of weights that are kept, one for the tiles in work.
        self._projections.resize(limit // 2)
        request = Request(
            scopes=scope_names.resolve_all(scopes, self.scopes),
            layers=self._layer_indices(layers),
            settings=Settings(
                rule=valid_choice(nonlinearity, RULES, "rule for the nonlinearity"),
                heads=heads,
                statistics=statistics,
                memory_limit=limit // 2,
                samples=_at_least_one(samples, "samples"),
                seed=seed,
            ),
            progress=progress,
        )
        results: list[Maps | None] = [None] * len(encoded)
        try:
            for indices in self._batches(encoded, batch_size):
                batch = [encoded[i] for i in indices]
                for index, maps in zip(indices, self._analyse(batch, request), strict=True):
                    results[index] = maps
        finally:
            self._projections.buffers.clear()
        return [maps for maps in results if maps is not None]

    # How ----------------------------------------------------------------------------------------

    def _encode(
        self, text: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any, truncate: bool
    ) -> tuple[list[Encoded], bool]:
        if (text is None) == (input_ids is None):
            raise InputError(
                "pass either a text (or a list of texts) or input_ids=…, one of the two"
            )
        vocabulary = getattr(self.adapter.config, "vocab_size", None)
        if text is None:
            return encode_ids(
                input_ids,
                attention_mask,
                token_type_ids,
                self.tokenizer,
                vocabulary,
                self.max_tokens,
            )
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
                    f"layer {layer!r} is out of range; {self.name} has layers 0 to {count - 1} "
                    f"(1 to {count} on the command line)"
                )
        if not chosen:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        return sorted({int(layer) % count for layer in chosen})

    def _batches(self, encoded: Sequence[Encoded], batch_size: int | str) -> Iterator[list[int]]:
        """Indices of sequences to run together, alike in length."""
        if batch_size == "auto":
            # On a CPU one sequence already fills the machine, and padding would only add work.
            size = (
                1
                if self.device.type == "cpu"
                else self._affordable(max(map(len, encoded), default=1))
            )
        elif isinstance(batch_size, int):
            size = _at_least_one(batch_size, "batch_size")
        else:
            raise InputError(f"batch_size is a number or 'auto', not {batch_size!r}")
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def _affordable(self, n: int) -> int:
        """How many sequences of n tokens fit into a quarter of the device's free memory."""
        attention = self._layers[0].attention
        d = attention.output.weight.shape[1]
        item = 8 if self.compute_dtype == torch.float64 else 4
        per_sequence = item * n * (4 * attention.heads * n + 3 * attention.heads * d + 12 * d)
        return max(1, min(64, free_memory(self.device) // 4 // per_sequence))

    def _analyse(self, batch: list[Encoded], request: Request) -> list[Maps]:
        """One batch; halved when the device runs out of memory."""
        try:
            return self._run(batch, request)
        except CompletenessError:
            # Weights that were edited through `.data` leave no sign but this one.
            if not self._projections.size:
                raise
            self._projections.clear()
            return self._run(batch, request)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
                raise
        if len(batch) > 1:
            half = len(batch) // 2
            return self._analyse(batch[:half], request) + self._analyse(batch[half:], request)
        raise MemoryLimitError(
            f"{len(batch[0])} tokens do not fit into the memory of {self.device}; use a shorter "
            "text, fewer layers, or another device (`normlens estimate` says what it needs)"
        )

    def _run(self, batch: list[Encoded], request: Request) -> list[Maps]:
        collected = [Collected() for _ in batch]
        lengths = [len(sequence) for sequence in batch]

        def consume(traced: LayerTrace) -> None:
            dtype = self.compute_dtype
            result = decompose_layer(
                traced.layer.to(dtype),
                traced.x.to(dtype),
                traced.alpha.to(dtype),
                lengths,
                request.scopes,
                request.settings,
                traced.real,
                self._projections.of(traced.index, _fingerprint(traced.block)),
            )
            self._check_completeness(traced.index, result)
            for index, (into, length) in enumerate(zip(collected, lengths, strict=True)):
                into.add(result, index, length, traced.layer)
            if request.progress is not None:
                request.progress(request.layers.index(traced.index) + 1, len(request.layers))

        trace(self.adapter, self._inputs(batch), request.layers, consume)
        return [
            self._maps(sequence, into, request)
            for sequence, into in zip(batch, collected, strict=True)
        ]

    @property
    def _pad_id(self) -> int:
        """Any id will do under the mask; some configurations name none, or −1."""
        pad_id = getattr(self.adapter.config, "pad_token_id", None)
        return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0

    def _inputs(self, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        inputs = pad(batch, self._pad_id, self.device)
        if getattr(self.adapter.config, "type_vocab_size", 0) < 2:
            inputs.pop("token_type_ids", None)
        return inputs

    def _check_completeness(self, index: int, result: LayerMaps) -> None:
        tolerance = TOLERANCE[self.dtype]
        for scope, error in result.completeness.items():
            if not error <= tolerance:
                component = scope_names.components_of(scope)[-1]
                raise CompletenessError(
                    f"parts and bias miss the real hidden state in layer {index + 1} at its "
                    f"{component} (scope {scope}): relative error {error:.1e}, tolerance "
                    f"{tolerance:.0e} for {str(self.dtype).removeprefix('torch.')}; "
                    "the model may differ from its family, or its values overflow"
                )

    def _maps(self, sequence: Encoded, collected: Collected, request: Request) -> Maps:
        completeness = max(collected.completeness, default=math.nan)  # weights have no parts
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
            "device": str(self.device),
            "versions": versions(),
        }
        if settings.rule == "shapley":
            provenance |= {"samples": settings.samples, "seed": settings.seed}
        return Maps(
            arrays={scope: np.stack(collected.arrays[scope]) for scope in request.scopes},
            tokens=sequence.tokens,
            layers=request.layers,
            allowed=np.stack(collected.allowed),
            completeness=completeness,
            provenance=provenance,
            mixing={scope: np.stack(rows) for scope, rows in collected.mixing.items()},
            heads={scope: np.stack(rows) for scope, rows in collected.heads.items()},
            standard_error={scope: np.stack(rows) for scope, rows in collected.errors.items()},
            statistics={name: np.stack(rows) for name, rows in collected.statistics.items()},
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
    progress: Progress | None = None


def _fingerprint(block: nn.Module) -> tuple[Any, ...]:
    """The state of a layer's weights, as far as torch tells when they change."""
    return tuple((weight.data_ptr(), weight._version) for weight in block.parameters())


def _at_least_one(value: int, what: str) -> int:
    if value < 1:
        raise InputError(f"{what} must be at least 1, not {value}")
    return value


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
