"""The model compared with itself: in float32, and with the padding that was left out.

In half precision a lost term could hide behind a model's rounding. So once for each kind of layer,
the layer's own modules run in float32 on what they read, and the frozen layer is held to them as it
is in a model of float32; so is the head. All of it happens in the first call that needs it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from normlens.errors import (
    CompletenessError,
    InputError,
    NormLensError,
    NormLensWarning,
    is_out_of_memory,
    reason_of,
)
from normlens.frozen.parts import relative_error
from normlens.frozen.scores import Errors, face_errors, vectors_of
from normlens.inputs.encode import reader_of
from normlens.inputs.text import SOURCE, TARGET, TEXT, Encoded
from normlens.layers import Experts, Layer
from normlens.options import DTYPES, HALF
from normlens.trace.locking import exclusive, other_forwards
from normlens.trace.run import Call, model_inputs, plain_options, reading, run_again

if TYPE_CHECKING:
    from normlens.lens import Lens

# Modules of half precision, run in float32 without a copy of their weights.


#: Numbers of a weight that are converted at once; a vocabulary's matrix has many times as many.
PIECE = 1 << 20
#: Methods that do not compute, as attributes do not; tensors are converted where they are used.
NO_NUMBERS = {"__get__", "t", "transpose", "detach", "dim", "size", "numel", "is_floating_point"}
#: Functions that take little of a large tensor.
LOOKUPS = {F.embedding, Tensor.__getitem__}

_FLOATS = {getattr(torch, name) for name in DTYPES}
_HALF = {getattr(torch, name) for name in HALF}


class NotInFloat32(Exception):
    """A part of a model that does not run in float32."""


class HalfAsFloat32(TorchFunctionMode):
    """Let this thread's functions read every tensor of half precision as one of float32.

    Types say float32, too, so that modules do not convert their vectors back. Weights are converted
    where they are used, and forgotten, except `kept` ones: those are converted once.
    """

    def __init__(self, kept: Iterable[Tensor] = ()):
        super().__init__()
        self._kept = {id(tensor): tensor.float() for tensor in kept if tensor.dtype in _HALF}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        args = [self._kept.get(id(value), value) for value in args]
        if function.__name__ in NO_NUMBERS:
            result = function(*args, **options)
            return result if isinstance(result, Tensor) else _wide(result)
        if function is F.linear and not options and args[1].dtype in _HALF:
            x, (weight, *bias) = _wide(args[0]), args[1:]
            pieces = weight.split(max(1, PIECE // weight.shape[1]))
            y = torch.cat([F.linear(x, piece.float()) for piece in pieces], dim=-1)
            return y + _wide(bias[0]) if bias and bias[0] is not None else y
        if function not in LOOKUPS:
            args = [_wide(value) for value in args]
            options = {name: _wide(value) for name, value in options.items()}
        return _wide(function(*args, **options))


def _wide(value: Any) -> Any:
    """A tensor, some of them, or a type, with float32 in the place of half precision."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF else value
    if type(value) in (list, tuple):
        return type(value)(map(_wide, value))
    return torch.float32 if isinstance(value, torch.dtype) and value in _HALF else value


@contextmanager
def in_float32(modules: Iterable[nn.Module], keep: bool = False) -> Iterator[None]:
    """Run these modules in float32; `NotInFloat32` says what keeps them from it.

    With `keep`, all their weights are in memory in float32 meanwhile.
    """
    each = (part for m in modules for part in (*m._parameters.values(), *m._buffers.values()))
    tensors = [tensor for tensor in each if tensor is not None]
    for tensor in tensors:
        whole_numbers = not tensor.is_floating_point() and not isinstance(tensor, nn.Parameter)
        plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta
        if not plain or not (whole_numbers or tensor.dtype in _FLOATS):
            raise NotInFloat32("its weights are quantised or offloaded")
    try:
        with HalfAsFloat32(tensors if keep else ()):
            yield
    except (RuntimeError, ValueError) as error:  # as torch and modules refuse a type
        if isinstance(error, NormLensError) or is_out_of_memory(error):
            raise
        raise NotInFloat32(reason_of(error)) from error


def end_in_float32(
    model: nn.Module, inputs: dict[str, Any], returned: Mapping[nn.Module, Any]
) -> Any:
    """What a model gives in float32 whose blocks, instead of running, return what is said here."""
    inside = {part for block in returned for part in block.modules()}
    outside = [part for part in model.modules() if part not in inside]

    def instead(output: Any) -> Callable[[Any], Callable[..., Any]]:
        return lambda _: lambda *_, **__: output

    blocks = {block: instead(tree_map(_wide, output)) for block, output in returned.items()}
    with in_float32(outside), other_forwards(blocks):
        return model(**inputs, **plain_options(model))


# Half precision held to float32.


#: Largest relative error in float32, that of models which have this precision themselves.
TOLERANCE = 1e-4


class Seen(NamedTuple):
    """A layer that the model has run on a batch: enough to run it again."""

    place: int  # among all layers that the model runs
    name: str  # what errors call it
    block: nn.Module
    call: Call
    lengths: Sequence[int]


@dataclass(frozen=True)
class Compared:
    """What a comparison found, or why there was none."""

    name: str
    error: float = math.nan
    seconds: float = 0.0
    reason: str | None = None


class Float32Check:
    """What a lens on a model of half precision has compared with float32 so far."""

    def __init__(self, lens: Lens):
        self._lens = lens
        #: By rule for the nonlinearity and kind of layer, or what else it is.
        self.compared: dict[tuple[str, Hashable], Compared] = {}

    @property
    def applies(self) -> bool:
        """Whether the model runs in half precision."""
        return self._lens.dtype in _HALF

    def is_due(self, rule: str, what: Hashable) -> bool:
        """Whether something is still to be compared; never in float32, nor while work is recorded.

        What is recorded has run before.
        """
        if not self.applies or (rule, what) in self.compared:
            return False
        return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())

    def once(self, rule: str, what: Hashable, name: str, errors: Callable[[], Errors]) -> None:
        """Compare something, unless that was done; `errors` says of what, and how large they are.

        The thread must be alone with the model.
        """
        if not self.is_due(rule, what):
            return
        began = perf_counter()
        try:
            found = list(errors())
        except NotInFloat32 as failure:
            self.compared[rule, what] = Compared(name, reason=str(failure))
            return
        for face, error in found:
            if not error <= TOLERANCE:
                raise CompletenessError(
                    f"{name} of {self._lens.name}, frozen, misses its own modules run in float32 "
                    f"in {face} (relative error {error:.1e}, tolerance {TOLERANCE:.0e}): a term is "
                    "missing where rounding would hide it, because the model differs from its "
                    "family, or values overflow (normlens help CompletenessError)"
                )
        worst = max(error for _, error in found)
        self.compared[rule, what] = Compared(name, worst, perf_counter() - began)

    def keep(self, kept: dict[Hashable, Seen], rule: str, face: str, seen: Seen) -> None:
        """Keep the first layer of each kind that is to be compared when the model has run.

        `face` is what the analysis reads of it (`normlens.frozen.scores.face_errors`).
        """
        if self.is_due(rule, what := (self._kinds[seen.place], face)):
            kept.setdefault(what, seen)

    def layers(self, rule: str, face: str, kept: Mapping[Hashable, Seen]) -> None:
        """Compare one layer of each kind, inside `normlens.trace.run.reading`."""
        for what, seen in kept.items():
            self.once(rule, what, seen.name, partial(self._layer_errors, rule, face, seen))

    def _layer_errors(self, rule: str, face: str, seen: Seen) -> Errors:
        adapter, place = self._lens.adapter, seen.place
        with in_float32(seen.block.modules(), keep=True):
            wide = run_again(adapter, place, seen.block, tree_map(_wide, seen.call))
        layer = Layer(wide.layer.steps, self._lens.layers[place].reach).to(torch.float32)
        given = layer, wide.x, wide.alphas
        _, vectors = vectors_of(*given, seen.lengths, rule, wide.sources)
        for step, y in wide.real.items():
            error = relative_error(vectors[step], y, seen.lengths)
            yield f"the vectors at {layer.step_names[step]}", float(error)
        yield from face_errors(face, *given, rule, wide.sources)

    @cached_property
    def _kinds(self) -> list[Hashable]:
        return [kind_of(layer) for layer in self._lens.layers]

    def in_words(self, rule: str) -> str | None:
        """What was compared under a rule, at what cost, and what was not; None: nothing was due."""
        if not self.compared:
            return None
        found = {what: one for (of, what), one in self.compared.items() if of == rule}
        ran = {what: one.name for what, one in found.items() if one.reason is None}
        layers = {name for what, name in ran.items() if isinstance(what, tuple)}
        names = [f"{len(layers)} of {len(self._kinds)} layers"] if layers else []
        names += [name for name in ran.values() if name not in layers]
        said = [f"{' and '.join(names)} ran again in float32"] if names else []
        reasons = dict.fromkeys(f"{one.name}: {one.reason}" for one in found.values() if one.reason)
        return "; ".join(said + [f"not compared: {reason}" for reason in reasons]) or None

    def __repr__(self) -> str:
        rows = (
            f"{one.name} ({rule}): {one.reason or f'{one.error:.1e} in {one.seconds:.3f} s'}"
            for (rule, _), one in self.compared.items()
        )
        return f"Float32Check({'; '.join(rows)})"


def kind_of(value: Any) -> Any:
    """What layers have in common that consist of the same terms, whatever the numbers are."""
    if isinstance(value, Layer):
        return kind_of((value.steps, value.reach))
    if isinstance(value, Experts):
        return kind_of((*value.examples, value.module, value.weighs_input, value.scale))
    if is_dataclass(value):
        return type(value), *(kind_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return tuple(map(kind_of, value))
    if isinstance(value, float):
        return value == 1  # a factor, or none
    return value if isinstance(value, (str, int, type(None))) else type(value)


# Padding that came with token ids and was left out: whether the model itself computes the same.
#
# Padding in front of a text shifts positions in models that count them from the first column, such
# as BERT and GPT-2; it shifts nothing in those that count from the mask (OPT, RoBERTa) or whose
# positions are relative (most models with rotary embeddings). What lies between (frequencies that
# depend on the length, chunks, convolutions) depends on the text, so the model is asked.


#: How far vectors may differ relatively by rounding; in half precision ten times its completeness.
ROUNDING = 1e-3
#: What a model returns that is compared, as far as it is there.
COMPARED = ("last_hidden_state", "encoder_last_hidden_state", "logits")
#: What a model raises that does not take an input.
REFUSALS = (AssertionError, IndexError, RuntimeError, ValueError)


def warn_of_padding(lens: Lens, items: Sequence[Encoded]) -> None:
    """Warn if the model gives other vectors with the padding that was left out of `items`.

    One of them, the one with most padding, is run with it and without it.
    """
    item, most = None, 0
    for each in items:
        count = 0
        for before, behind in map(attrgetter("padding"), each.sequences):
            count += len(before) + (len(behind) if lens.adapter.padding_leaks else 0)
        if count > most:
            item, most = each, count
    if item is None or not _is_runnable(lens, item):
        return
    given = "called with these input_ids and this attention_mask"
    difference = _difference(lens, item)
    if isinstance(difference, Exception):
        said = (
            f"{given}, {lens.name} itself fails ({reason_of(difference)}), so that its vectors "
            "could not be compared with those without padding; NormLens leaves padding out and "
            "counts from the first token"
        )
    elif difference <= 10 * HALF.get(str(lens.dtype).removeprefix("torch."), ROUNDING / 10):
        return
    else:
        size = f"{difference:.2g} of their norm" if math.isfinite(difference) else "NaN"
        said = (
            f"{given}, {lens.name} itself gives other vectors (the largest difference is {size}), "
            "because padding shifts its positions or reaches its tokens; NormLens leaves padding "
            "out and counts from the first token: pad on the right, or give the model "
            "position_ids that do so, to compare the two"
        )
    warnings.warn(said, NormLensWarning, stacklevel=3)


def _is_runnable(lens: Lens, item: Encoded) -> bool:
    """Whether the model takes the padded ids at all; where it does not, there is nothing else."""
    names = (SOURCE, TARGET) if lens.two_stacks else (TEXT,)
    try:
        for name, sequence in zip(names, item.sequences, strict=True):
            before, behind = sequence.padding
            if before or behind:
                reader_of(lens, name).check([*before, *sequence.ids, *behind], name)
    except InputError:
        return False
    return True


def _difference(lens: Lens, item: Encoded) -> float | Exception:
    """How far the model's vectors of a token with and without padding are apart, at most.

    Where the model does not take the padding, the error that says so.
    """
    adapter, sequences = lens.adapter, item.sequences
    plain = model_inputs(adapter, [item], lens.device)
    padded = dict(plain)
    for start, sequence in zip(("", "decoder_"), sequences, strict=False):
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            row = plain.get(f"{start}{name}")
            if row is not None:
                # The ids that were given, and zeros beside them.
                before, behind = (
                    row.new_tensor([ids]) * (name == "input_ids") for ids in sequence.padding
                )
                padded[f"{start}{name}"] = torch.cat([before, row, behind], dim=1)
    models = [adapter.model]
    if type(adapter.whole).__name__.endswith("ForSequenceClassification"):
        models.append(adapter.whole)  # whose head may read the first column

    def run() -> float | Exception:
        errors = [0.0]
        with reading(adapter.whole, adapter):
            for model in models:
                alone = model(**plain, **plain_options(model))
                try:
                    beside = model(**padded, **plain_options(model))
                except REFUSALS as error:
                    if isinstance(error, NormLensError) or is_out_of_memory(error):
                        raise
                    return error
                for name in COMPARED:
                    vectors, expected = getattr(beside, name, None), getattr(alone, name, None)
                    if vectors is None or expected is None:
                        continue
                    if expected.dim() == 3:
                        sequence = sequences[0 if name.startswith("encoder") else -1]
                        first = len(sequence.padding[0])
                        vectors = vectors[:, first : first + len(sequence)]
                    missed = (vectors - expected).norm(dim=-1)
                    relative = missed / expected.norm(dim=-1).clamp_min(1e-30)
                    errors.append(float(relative.max()))
        return float(torch.tensor(errors).max())  # NaN if one is

    return exclusive(adapter.whole, run)
