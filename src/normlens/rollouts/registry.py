"""Every method by its name, with one contract: a lens and a text make maps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from normlens.errors import InputError
from normlens.options import AnalysisOptions
from normlens.results.maps import Maps
from normlens.rollouts.alti_rollout import alti
from normlens.rollouts.globenc_rollout import globenc
from normlens.rollouts.layerwise import Given, RolloutOptions, as_given, check_stack, sequences
from normlens.rollouts.value_zeroing_rollout import value_zeroing
from normlens.scopes import resolve

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Before a scope's name, the method that rolls out that scope: "rollout-LN1".
PREFIX = "rollout-"


class Method(Protocol):
    """A lens and a text, or several, make maps through all layers."""

    def __call__(
        self, lens: Lens, text: Given, options: RolloutOptions = ...
    ) -> Maps | list[Maps]: ...


def rollout_of_scope(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions(), *, scope: str
) -> Maps | list[Maps]:
    """The rollout of any scope (`Maps.rollout`); a list of texts gives a list."""
    check_stack(lens)
    name = resolve(scope, lens.scopes)
    encoded, many = sequences(lens, text, options)
    of_scope = AnalysisOptions(
        scopes=name, batch_size=options.batch_size, memory_limit=options.memory_limit
    )
    maps = [one.rollout(name) for one in lens.analyse(encoded, of_scope)]
    return as_given(maps, many)


def rollout_of_weights(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """Attention rollout, ``Â = ½ W̄ + ½ I`` (Abnar & Zuidema 2020); a list gives a list."""
    return rollout_of_scope(lens, text, options, scope="ATTN-W")


#: The methods that have a name of their own.
METHODS: Mapping[str, Method] = {
    "rollout-weights": rollout_of_weights,
    "globenc": globenc,
    "alti": alti,
    "value-zeroing": value_zeroing,
}


def method(name: str) -> Method:
    """The method of this name, ``rollout-SCOPE`` for the rollout of any scope."""
    wanted = str(name).strip().lower()
    if wanted in METHODS:
        return METHODS[wanted]
    scope = wanted.removeprefix(PREFIX)
    if scope and scope != wanted:
        return partial(rollout_of_scope, scope=scope)
    raise InputError(
        f"unknown rollout {name!r}; choose one of: {', '.join(METHODS)}, or {PREFIX}SCOPE with a "
        f"scope of the model ({PREFIX}LN1)"
    )
