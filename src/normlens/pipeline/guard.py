"""Half precision guarded by float32: a lost term must not hide behind a model's rounding.

Once for each kind of layer, the layer's own modules run in float32 on what they read, and the
frozen layer is held to them as it is in a model of float32; so is the head. One layer's copy is in
memory at a time, no layer runs again twice, and all of it happens in the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from normlens.errors import CompletenessError
from normlens.frozen.scores import Errors, face_errors, vectors_of
from normlens.layers import Experts, Layer
from normlens.options import HALF
from normlens.plan.memory import relative_error
from normlens.trace.recorder import Call
from normlens.trace.wide_copies import NotInFloat32, block_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens

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
    error: float = float("nan")
    seconds: float = 0.0
    reason: str | None = None


class Guard:
    """What a lens on a model of half precision has compared with float32 so far."""

    def __init__(self, lens: Lens):
        self._lens = lens
        #: By rule for the nonlinearity and kind of layer, or what else it is.
        self.compared: dict[tuple[str, Hashable], Compared] = {}

    def is_due(self, rule: str, what: Hashable) -> bool:
        """Whether something is still to be compared; never in float32, nor while work is recorded.

        What is recorded has run before.
        """
        half = str(self._lens.dtype).removeprefix("torch.") in HALF
        if not half or (rule, what) in self.compared:
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

    def keep(self, kept: dict[Hashable, Seen], rule: str, seen: Seen) -> None:
        """Keep the first layer of each kind that is to be compared when the model has run."""
        if self.is_due(rule, kind := self._kinds[seen.place]):
            kept.setdefault(kind, seen)

    def layers(self, rule: str, kept: Mapping[Hashable, Seen]) -> None:
        """Compare one layer of each kind, inside `normlens.trace.run.reading`."""
        for kind, seen in kept.items():
            self.once(rule, kind, seen.name, partial(self._layer_errors, rule, seen))

    def _layer_errors(self, rule: str, seen: Seen) -> Errors:
        lens = self._lens
        wide = block_in_float32(lens.adapter, seen.place, seen.block, seen.call)
        layer = Layer(wide.layer.steps, lens.layers[seen.place].reach).to(torch.float32)
        given = layer, wide.x, wide.alphas
        _, vectors = vectors_of(*given, seen.lengths, rule, wide.sources)
        for step, y in wide.real.items():
            error = relative_error(vectors[step], y, seen.lengths)
            yield f"the vectors at {layer.step_names[step]}", float(error)
        yield from face_errors(*given, rule, wide.sources)

    @cached_property
    def _kinds(self) -> list[Hashable]:
        return [kind_of(layer) for layer in self._lens.layers]

    def in_words(self, rule: str) -> str | None:
        """What was compared under a rule, at what cost, and what was not; None: nothing was due."""
        found = {what: one for (of, what), one in self.compared.items() if of == rule}
        ran = [what for what, one in found.items() if one.reason is None]
        layers = sum(what in self._kinds for what in ran)
        names = [f"{layers} of {len(self._kinds)} layers"] if layers else []
        names += [found[what].name for what in ran if what not in self._kinds]
        said = [f"{' and '.join(names)} ran again in float32"] if names else []
        reasons = dict.fromkeys(f"{one.name}: {one.reason}" for one in found.values() if one.reason)
        return "; ".join(said + [f"not compared: {reason}" for reason in reasons]) or None

    def __repr__(self) -> str:
        rows = (
            f"{one.name} ({rule}): {one.reason or f'{one.error:.1e} in {one.seconds:.3f} s'}"
            for (rule, _), one in self.compared.items()
        )
        return f"Guard({'; '.join(rows)})"


def kind_of(layer: Layer) -> Hashable:
    """What layers have in common that consist of the same terms, whatever the numbers are."""
    outline: Hashable = _outline((layer.steps, layer.reach))
    return outline


def _outline(value: Any) -> Any:
    if isinstance(value, Experts):
        return _outline((*value.examples, value.module, value.weighs_input, value.scale))
    if is_dataclass(value):
        return type(value), *(_outline(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return tuple(map(_outline, value))
    if isinstance(value, float):
        return value == 1  # a factor, or none
    return value if isinstance(value, (str, int, type(None))) else type(value)
