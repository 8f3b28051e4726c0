"""Batches, progress, provenance and tolerances of a call, and what a model of many layers has."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from normlens._version import __version__
from normlens.errors import (
    CompletenessError,
    InputError,
    MemoryLimitError,
    ModelLoadError,
    is_out_of_memory,
    process_limit,
)
from normlens.layers import Layer
from normlens.models.base import Adapter
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import AUTO, whole_number
from normlens.plan.costs import VectorSizes, affordable_batch, source_memory
from normlens.scopes import components_of, layers_in_words

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded
    from normlens.lens import Lens


# Batches: the sequences that are analysed together, halved where memory runs out.


def batches(lens: Lens, encoded: Sequence[Encoded], batch_size: int | str) -> Iterator[list[int]]:
    """Indices of the sequences in each batch, which are of similar length.

    Pictures and sounds are not padded, nor are texts where padding leaks: they are of one shape.
    """
    if len(encoded) == 1:
        yield [0]
        return
    lengths = [item.longest for item in encoded]
    if batch_size == AUTO:
        size = affordable(lens, max(lengths, default=1))
    else:
        size = whole_number(int(batch_size), "batch_size", 1)
    order = sorted(range(len(encoded)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        together = [lengths[index] for index in batch]
        if len(batch) > 1 and padding_spoils(lens.layers, lens.dtype, together):
            yield from ([index] for index in batch)
            continue
        shapes: dict[Any, list[int]] = {}
        for index in batch:
            signal = encoded[index].signal
            length = lengths[index] if lens.adapter.padding_leaks else None
            shapes.setdefault(length if signal is None else signal.shape, []).append(index)
        yield from shapes.values()


def padding_spoils(layers: Sequence[Layer], dtype: torch.dtype, lengths: Sequence[int]) -> bool:
    """Whether a padded batch has rows that see no token at all, which give NaN in this precision.

    Behind the end of a short text, a window may hold nothing but padding. The masked scores of
    such a row are −∞ where the softmax has a smaller range than the mask was made for (float64
    masks in a float32 softmax), or where a sum leaves the range of float16. Its NaN then reaches
    real tokens as 0 · NaN.
    """
    if dtype not in (torch.float64, torch.float16):
        return False
    windows = [layer.reach.back for layer in layers if layer.reach.back is not None]
    return bool(windows) and max(lengths) - min(lengths) > min(windows)


def affordable(lens: Lens, n: int) -> int:
    """How many sequences of n tokens a batch has on the model's device.

    Other programs may leave less memory than this assumes; then a batch is halved (`halves`).
    """
    weights = sum(parameter.nbytes for parameter in lens.model.parameters())
    itemsize = lens.compute_dtype.itemsize
    return affordable_batch(lens.device, lens.layers, weights, n, itemsize)


def vector_batch(lens: Lens, n: int, batch_size: int | str, limit: int, whole: bool = True) -> int:
    """How many sequences of n tokens hold their vectors of sources within a memory limit.

    `whole` are the vectors of all sources, else those of one in layers that follow parts so.
    """
    wanted = affordable(lens, n) if batch_size == AUTO else int(batch_size)
    itemsize = lens.compute_dtype.itemsize
    if whole:
        each = VectorSizes.of(lens.layers, 1, n, itemsize).least
    else:
        layers = [layer for layer in lens.layers if layer.by_source]
        each = max(source_memory(layer, 1, n, itemsize) for layer in layers)
    return max(1, min(wanted, limit // each))


def halves(
    lens: Lens, items: Sequence[Encoded], batch: list[int], error: Exception
) -> tuple[list[int], list[int]]:
    """Both halves of a batch that failed with `error`, if it ran out of memory; else raise it."""
    if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
        raise error
    if len(batch) == 1:
        raise MemoryLimitError(
            f"{len(items[batch[0]])} tokens do not fit into the memory of {lens.device}; use a "
            "shorter text, fewer layers, or another device (`normlens map --estimate` says what it "
            f"needs){process_limit()}"
        ) from error
    half = len(batch) // 2
    return batch[:half], batch[half:]


# Progress of a call, for a user's function or as a bar.


#: Called with the layers done and the layers asked for; what it raises ends the computation.
Progress = Callable[[int, int], None]

#: Seconds before a bar appears that nobody asked for.
DELAY = 2.0


def by_layers(progress: Progress | None, layers: int) -> Callable[[float], None] | None:
    """A function of the part that is done, from 0 to 1, that tells it in layers."""
    if progress is None:
        return None
    return lambda part: progress(int(part * layers), layers)


@contextmanager
def layers_shown(progress: Progress | bool | None, device: str) -> Iterator[Progress | None]:
    """The function to tell of each layer: a user's, or that of a bar (tqdm's).

    True is a bar at once. None is one where somebody looks on (a terminal or a notebook), for work
    on a CPU that takes longer than `DELAY`: on a GPU layers are not waited for, and a call that is
    recorded goes through all of them at once.
    """
    if callable(progress):
        yield progress
        return
    bar = None
    if progress or (progress is None and device == "cpu" and _is_watched()):
        with suppress(ImportError), warnings.catch_warnings():  # transformers brings tqdm along
            warnings.simplefilter("ignore")  # without ipywidgets it is a bar of characters
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            bar = LayerBar(tqdm, 0.0 if progress else DELAY)
    try:
        yield bar
    finally:
        if bar is not None and bar.shown is not None:
            bar.shown.close()


class LayerBar:
    """A bar of layers, in a terminal or a notebook; it begins anew with every batch."""

    def __init__(self, tqdm: Callable[..., Any], delay: float):
        # A bar that nobody asked for goes when it is done.
        options = {"unit": "layer", "desc": "layers", "delay": delay, "leave": not delay}
        self._make = partial(tqdm, **options)
        self.shown: Any = None
        self._batch = 1

    def __call__(self, done: int, total: int) -> None:
        if self.shown is None:
            self.shown = self._make(total=total)
        if done <= self.shown.n and done < total:
            self._batch += 1
            self.shown.set_description(f"layers of batch {self._batch}", refresh=False)
            self.shown.reset(total=total)
        self.shown.update(done - self.shown.n)


def _is_watched() -> bool:
    """Whether somebody sees what is printed: a terminal, or a notebook."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


# What every result says about how it was made.


def provenance(lens: Lens, rule: str, completeness: float, tolerance: float) -> dict[str, Any]:
    """The model, the rule for its activations, how exact the result is, and where it was made."""
    compared = lens.float32_check.in_words(rule)
    return {
        "model": lens.name,
        "revision": lens.revision,
        "model_type": lens.adapter.config.model_type,
        "components": lens.component_sequence,
        "causal": lens.adapter.causal,
        "nonlinearity": rule,
        "completeness": completeness,
        "tolerance": tolerance,
        "dtype": str(lens.dtype).removeprefix("torch."),
        "compute_dtype": str(lens.compute_dtype).removeprefix("torch."),
        **({} if compared is None else {"compared_with_float32": compared}),
        "device": str(lens.device),
        "versions": dict(versions()),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of everything that a number may depend on."""
    import transformers

    return {
        "normlens": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# How exact an analysis has to be: tolerances, and the errors where they are exceeded.


#: Largest relative error of parts + bias against the model's own vectors, by the model's dtype.
TOLERANCE = {
    torch.float64: 1e-4,  # many models compute their norms and softmax in float32 regardless
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

#: Largest error of contributions and biases against the model's own score, relative to the largest
#: of the score and its summands.
SCORE_TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

#: Largest error of the sum of a kernel's parts, by the precision of its products, and of sampled
#: norms beside their recomputation.
KERNEL_TOLERANCE = {"float32": 1e-4, "tf32": 1e-3, "bfloat16": 5e-3}
SAMPLE_TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "bfloat16": 3e-2}

#: The largest number of float16, and the largest entry of a map below which its digits are fewer
#: than those of float16, because the smallest steps of this type are 2⁻²⁴.
HALF_RANGE = 2.0**-13, 65504.0


def check_range(peaks: Sequence[tuple[int, str, float]], layer_in_words: str) -> None:
    """Raise where float16 cannot hold a map; `peaks` are largest entries by layer and name."""
    least, most = HALF_RANGE
    for layer, name, peak in peaks:
        if not (peak == 0 or least <= peak <= most):
            what = f"is beyond its largest number, {most:,.0f}" if peak > most else "is too small"
            raise InputError(
                f"float16 cannot hold the map of {name} in {layer_in_words} {layer}: its largest "
                f"entry, {peak:,.5g}, {what}; leave `map_dtype` out"
            )


def _beyond(what: str, error: float, tolerance: float, unit: object, advice: str) -> Exception:
    """The exception for an error that is beyond its tolerance, or no number."""
    return CompletenessError(
        f"{what}: relative error {error:.1e}, tolerance {tolerance:.0e} for "
        f"{str(unit).removeprefix('torch.')}; {advice} (normlens help CompletenessError)"
    )


def check_completeness(
    errors: Sequence[tuple[int, str, float]], dtype: torch.dtype, layer_in_words: str = "layer"
) -> None:
    """Raise where parts and bias miss the model's vectors; `errors` by layer and scope."""
    for layer, scope, error in errors:
        if not error <= TOLERANCE[dtype]:
            what = (
                f"parts and bias miss the real hidden state in {layer_in_words} {layer} at its "
                f"{components_of(scope)[-1]} (scope {scope})"
            )
            advice = "the model may differ from its family, or its values overflow"
            raise _beyond(what, error, TOLERANCE[dtype], dtype, advice)


def check_scores(errors: Sequence[float], dtype: torch.dtype, layer_names: Sequence[str]) -> None:
    """Raise where contributions and biases miss a score; `errors` by layer, the last behind all."""
    # Scores are carried from the end, so the last layer that misses is where it began.
    for error, where in zip(reversed(errors), ("the head", *reversed(layer_names)), strict=False):
        if not error <= SCORE_TOLERANCE[dtype]:
            what = f"contributions and biases miss the model's own score from {where} on"
            advice = "the model may differ from its family"
            raise _beyond(what, error, SCORE_TOLERANCE[dtype], dtype, advice)


def check_kernels(
    errors: Sequence[tuple[int, str, float]], precision: str | None, layer_in_words: str
) -> None:
    """Raise where a kernel's parts miss their sum or a sample; `errors` by layer and kind."""
    for layer, kind, error in errors:
        is_sum = kind == "sum"
        tolerance = (KERNEL_TOLERANCE if is_sum else SAMPLE_TOLERANCE)[str(precision)]
        if not error <= tolerance:
            missed = "do not add up" if is_sum else "miss an exact recomputation"
            what = f"the parts behind the feed-forward block of {layer_in_words} {layer} {missed}"
            advice = 'take another `precision`, or device="cpu"'
            raise _beyond(what, error, tolerance, precision, advice)


def check_finite(model: nn.Module, name: str) -> None:
    """Refuse weights with NaN or infinity, which give maps without meaning."""
    for key, parameter in model.named_parameters():
        # Quantised tensors have no sums; NaN in one of them is noticed as a lack of completeness.
        plain = type(parameter) in (Tensor, nn.Parameter)
        if not plain or not parameter.is_floating_point() or parameter.is_meta:
            continue
        # The sum is finite unless a value is not; it needs no copy of the weights.
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float64)):
            raise ModelLoadError(
                f"the weights of {name} hold values that are not finite (in {key!r}); "
                "load another checkpoint"
            )


# What a model has whose layers may differ: its scopes, and its components in words.


def scopes_of(layers: Sequence[Layer], own: bool = False) -> list[str]:
    """Every scope that any of the layers has, in its order; those of users' `own` come last."""
    scopes: dict[str, None] = {}
    for layer in layers:
        scopes |= dict.fromkeys(layer.scopes)
    for layer in layers if own else ():
        scopes |= dict.fromkeys(layer.own_scopes)
    return list(scopes)


def layers_by_stack(adapter: Adapter, layers: list[Layer]) -> dict[str, list[Layer]]:
    """A model's layers by the name of their stack; an encoder–decoder runs one after the other."""
    if not isinstance(adapter, TwoStacks):
        return {"": layers}
    count = len(adapter.encoder_blocks())
    return {ENCODER: layers[:count], DECODER: layers[count:]}


def components_in_words(layers: Sequence[Layer]) -> str:
    """The order of components, once for each kind of layer."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(layer.scopes, []).append(index)
    # The first layer of ModernBERT lacks a norm that all others have, though no scope shows it.
    words = [(layers[indices[-1]].component_sequence, indices) for indices in kinds.values()]
    if len(words) == 1:
        return words[0][0]
    return "; ".join(f"{sequence} ({layers_in_words(indices)})" for sequence, indices in words)
