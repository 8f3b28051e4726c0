"""How many workers there are, and what each takes of a node: ``gpu=1,cpu=4,memory=16GB``."""

from __future__ import annotations

import math
import re

from normlens.errors import InputError, OptionError
from normlens.options import AUTO, parse_bytes

#: Resources that every cluster has, by the names that are typed for them.
CPU, GPU, MEMORY = "cpu", "gpu", "memory"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


def parse_workers(value: int | str) -> int | str:
    """A number of workers, or "auto"."""
    try:
        return AUTO if value == AUTO else int(value)
    except ValueError:
        raise OptionError(
            "workers", f"{{option}} is a number from 1 or 'auto', not {value!r}"
        ) from None


def parse_resources(text: str | None) -> dict[str, float]:
    """Amounts by name; memory is in bytes, and names beside the common ones are the cluster's."""
    amounts: dict[str, float] = {}
    if text is None:
        return amounts
    for part in text.split(","):
        name, _, given = (side.strip() for side in part.partition("="))
        common = name.lower() in (CPU, GPU, MEMORY)
        name = name.lower() if common else name
        if not _NAME.fullmatch(name) or not given:
            raise _refused(
                f"{{option}} is NAME=AMOUNT,…, such as gpu=1,cpu=4,memory=16GB, not {text!r}"
            )
        if name in amounts:
            raise _refused(f"{{option}} names {name!r} twice: {text!r}")
        amounts[name] = _amount(name, given)
    return amounts


def _amount(name: str, given: str) -> float:
    try:
        amount = float(parse_bytes(given) or 0) if name == MEMORY else float(given)
    except InputError:
        raise _refused(f"{{option}}: memory={given} is no size; write for example 16GB") from None
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise _refused(f"{{option}}: {name}={given} is no number from 0")
    if name != MEMORY and amount > 1 and amount != int(amount):
        # Ray shares out one of a resource in fractions, but more of it in whole ones only.
        raise _refused(f"{{option}}: {name}={given} must be whole, or a fraction below 1")
    return amount


def _refused(message: str) -> OptionError:
    return OptionError("resources", message)


def named(amounts: dict[str, float]) -> str:
    """Amounts as they are typed."""
    return ",".join(
        f"{name}={amount / (1 << 30):.3g}GB" if name == MEMORY else f"{name}={amount:g}"
        for name, amount in amounts.items()
    )
