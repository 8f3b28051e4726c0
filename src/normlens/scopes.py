"""Names of scopes: the papers' names, the rule behind them, and short aliases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from normlens.errors import UnknownScopeError

WEIGHT_SCOPES = ("ATTN-W", "ATTNRES-W")
_COMPONENT = re.compile(r"ATTN|CROSS|RES|LN|FF")


def components_of(scope: str) -> list[str]:
    """The components that a scope consists of: ``"ATTNRESLN-N"`` → ATTN, RES, LN."""
    return _COMPONENT.findall(scope.rsplit("-", 1)[0])


def aliases(scopes: Iterable[str]) -> dict[str, str]:
    """Short names: a scope's last component, numbered where the layer has several of its kind.

    BERT has ATTN, RES1, LN1, FF, RES2 and LN2; the name without its ``-N`` works too.
    """
    prefixes = [scope for scope in scopes if scope.endswith("-N")]
    longest = max((components_of(scope) for scope in prefixes), key=len, default=[])
    repeated = Counter(longest)
    names: dict[str, str] = {}
    for scope in prefixes:
        parts = components_of(scope)
        last = parts[-1]
        if repeated[last] == 1:
            names[last] = scope
        # Numbered names hold even where only some of the layer's scopes are at hand.
        names[f"{last}{parts.count(last)}"] = scope
        names[scope.removesuffix("-N")] = scope
    return names


def resolve(name: str, scopes: Sequence[str]) -> str:
    """The scope that `name` (full or short, in any case) means, or an error that lists all."""
    wanted = str(name).strip().upper()
    if wanted in scopes:
        return wanted
    known = aliases(scopes)
    if wanted in known:
        return known[wanted]
    brief = shortest(scopes)
    raise UnknownScopeError(
        f"unknown scope {name!r}; this model has {', '.join(scopes)}"
        + (f" (short: {', '.join(brief.values())})" if brief else "")
    )


def shortest(scopes: Iterable[str]) -> dict[str, str]:
    """The first of each scope's short names."""
    names: dict[str, str] = {}
    for alias, scope in aliases(scopes).items():
        names.setdefault(scope, alias)
    return names


def resolve_all(names: str | Iterable[str] | None, scopes: Sequence[str]) -> list[str]:
    """Several scopes in the order of the layer; None or "all" means every one."""
    if names is None or names == "all":
        return list(scopes)
    listed = [names] if isinstance(names, str) else list(names)
    chosen = {resolve(name, scopes) for name in listed}
    return [scope for scope in scopes if scope in chosen]


class Step(NamedTuple):
    """A component, by its short name, and the scopes before and after it."""

    component: str
    before: str
    after: str


def consecutive(scopes: Sequence[str]) -> list[Step]:
    """The steps between consecutive scopes: ATTN-W → ATTN-N → ATTNRES-N → … .

    ATTNRES-W is a baseline beside the sequence, not a step of it.
    """
    chain = [scope for scope in scopes if scope.endswith("-N")]
    if "ATTN-W" in scopes and "ATTN-N" in chain:
        chain.insert(0, "ATTN-W")
    names = shortest(scopes)
    return [Step(names[after], before, after) for before, after in pairwise(chain)]


def feed_forward_pair(scopes: Sequence[str]) -> tuple[str, str] | None:
    """The scopes just before and just behind the feed-forward block, where both are at hand."""
    after = next((scope for scope in scopes if scope.endswith("FF-N")), "")
    before = f"{after.removesuffix('FF-N')}-N"
    return (before, after) if after and before in scopes else None
