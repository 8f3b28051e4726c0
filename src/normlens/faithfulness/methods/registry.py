"""Every method by its name."""

from __future__ import annotations

from normlens.faithfulness.methods.base import Method
from normlens.faithfulness.methods.frozen_network import (
    NORMLENS,
    NORMLENS_GRADIENT,
    NORMLENS_IG_BIAS,
)
from normlens.faithfulness.methods.gradient_times_input import GRADIENT_TIMES_INPUT
from normlens.faithfulness.methods.integrated_gradients import INTEGRATED_GRADIENTS
from normlens.faithfulness.methods.leave_one_out import LEAVE_ONE_OUT
from normlens.faithfulness.methods.names import checked_name
from normlens.faithfulness.methods.priors import FIRST_TOKEN, RANDOM
from normlens.faithfulness.methods.products import product_method
from normlens.faithfulness.methods.user_method import user_method
from normlens.faithfulness.methods.whole_vectors import VECTORS

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
