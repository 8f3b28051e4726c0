"""The names of the methods; nothing here needs torch."""

from __future__ import annotations

from normlens.errors import InputError

#: Before a scope's name, the method that rolls out that scope: "rollout-LN1".
ROLLOUT = "rollout-"

#: Methods that have a name of their own, in the order of reports.
NAMES = (
    "normlens",
    "normlens-gradient",
    "normlens-ig-bias",
    "vectors",
    "rollout-weights",
    "globenc",
    "alti",
    "value-zeroing",
    "gradient-x-input",
    "integrated-gradients",
    "leave-one-out",
    "random",
    "first-token",
)


def checked_name(name: str) -> str:
    """A method's name as it is written, or an error that lists the names.

    Whether a model has the scope of a rollout, and what a user's module holds, is seen later.
    """
    wanted = str(name).strip()
    if ":" in wanted:
        return wanted
    lower = wanted.lower()
    if lower in NAMES or (lower.startswith(ROLLOUT) and lower != ROLLOUT):
        return lower
    raise InputError(
        f"unknown method {name!r}; choose one of: {', '.join(NAMES)}, {ROLLOUT}SCOPE with a scope "
        f"of the model ({ROLLOUT}LN1), or your own as my_module:my_function"
    )
