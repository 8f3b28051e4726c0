"""Names of scopes: the papers' own, the naming rule, and short aliases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from normlens.errors import UnknownScopeError

WEIGHT_SCOPES = ("ATTN-W", "ATTNRES-W")
_COMPONENT = re.compile(r"ATTN|RES|LN|FF")


def components_of(scope: str) -> list[str]:
    """The components that a scope consists of: ``"ATTNRESLN-N"`` → ATTN, RES, LN."""
    return _COMPONENT.findall(scope.rsplit("-", 1)[0])


def aliases(scopes: Iterable[str]) -> dict[str, str]:
    """Short names: a scope by its last component, numbered where the layer has several of it.

    BERT has ATTN, RES1, LN1, FF, RES2 and LN2; the name without its ``-N`` works too.
    """
    prefixes = [scope for scope in scopes if scope.endswith("-N")]
    longest = max((components_of(scope) for scope in prefixes), key=len, default=[])
    repeated = Counter(longest)
    names: dict[str, str] = {}
    for scope in prefixes:
        parts = components_of(scope)
        last = parts[-1]
        number = str(parts.count(last)) if repeated[last] > 1 else ""
        names[f"{last}{number}"] = scope
        names[scope.removesuffix("-N")] = scope
    return names


def resolve(name: str, scopes: Sequence[str]) -> str:
    """The scope that `name` (full or short, in any case) means, or an error that lists them."""
    wanted = str(name).strip().upper()
    if wanted in scopes:
        return wanted
    short = aliases(scopes)
    if wanted in short:
        return short[wanted]
    brief = ", ".join(alias for alias, scope in short.items() if f"{alias}-N" != scope)
    raise UnknownScopeError(
        f"unknown scope {name!r}; this model has {', '.join(scopes)}"
        + (f" (short: {brief})" if brief else "")
    )


def resolve_all(names: str | Iterable[str] | None, scopes: Sequence[str]) -> list[str]:
    """Several scopes in the order of the layer; None or "all" means every one."""
    if names is None or names == "all":
        return list(scopes)
    listed = [names] if isinstance(names, str) else list(names)
    chosen = {resolve(name, scopes) for name in listed}
    return [scope for scope in scopes if scope in chosen]
