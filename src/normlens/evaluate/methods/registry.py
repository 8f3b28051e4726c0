"""Every method by its name."""

from __future__ import annotations

from normlens.evaluate.methods.base import Method
from normlens.evaluate.methods.frozen_network import (
    NORMLENS,
    NORMLENS_GRADIENT,
    NORMLENS_IG_BIAS,
)
from normlens.evaluate.methods.gradient_times_input import GRADIENT_TIMES_INPUT
from normlens.evaluate.methods.integrated_gradients import INTEGRATED_GRADIENTS
from normlens.evaluate.methods.leave_one_out import LEAVE_ONE_OUT
from normlens.evaluate.methods.names import checked_name
from normlens.evaluate.methods.priors import FIRST_TOKEN, RANDOM
from normlens.evaluate.methods.products import product_method
from normlens.evaluate.methods.user_method import user_method
from normlens.evaluate.methods.whole_vectors import VECTORS

_METHODS = {
    one.name: one
    for one in (
        NORMLENS,
        NORMLENS_GRADIENT,
        NORMLENS_IG_BIAS,
        VECTORS,
        GRADIENT_TIMES_INPUT,
        INTEGRATED_GRADIENTS,
        LEAVE_ONE_OUT,
        RANDOM,
        FIRST_TOKEN,
    )
}


def method(name: str) -> Method:
    """The method of this name, ``rollout-SCOPE``, or a user's own ``my_module:my_function``."""
    wanted = checked_name(name)
    if ":" in wanted:
        return user_method(wanted)
    return _METHODS[wanted] if wanted in _METHODS else product_method(wanted)
