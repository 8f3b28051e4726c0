"""Names of scopes (the papers' names, the rule behind them, short aliases), and layers in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from normlens.errors import InputError, UnknownScopeError, listed

# Names of scopes: the papers' names, the rule behind them, and short aliases.


WEIGHT_SCOPES = ("ATTN-W", "ATTNRES-W", "CROSS-W")
_COMPONENT = re.compile(r"ATTN|CROSS|PROJ|RES|LN|FF")


def components_of(scope: str) -> list[str]:
    """The components that a scope consists of: ``"ATTNRESLN-N"`` → ATTN, RES, LN."""
    return _COMPONENT.findall(scope.rsplit("-", 1)[0].rpartition("=")[2])


def holds(scope: str) -> tuple[bool, bool]:
    """Whether a scope has parts of the targets' own tokens, and of another sequence's.

    Behind CROSS alone there is nothing of the targets; they come back by the residual.
    """
    parts = components_of(scope)
    return parts[-1] != "CROSS", "CROSS" in parts


def aliases(scopes: Iterable[str]) -> dict[str, str]:
    """Short names: a scope's last component, numbered where the layer has several of its kind.

    BERT has ATTN, RES1, LN1, FF, RES2 and LN2; the name without its ``-N`` works too. Where layers
    differ, a name that would stand for several scopes is left out. CROSS and CROSS-N are the
    scope that ends with the attention to another sequence: nothing but its output is there.
    """
    return {name: given[0] for name, given in _named(list(scopes)).items() if len(given) == 1}


def _named(scopes: Sequence[str]) -> dict[str, list[str]]:
    """Every short name and the scopes that it stands for: several only where layers differ."""
    most: Counter[str] = Counter()  # the most of each component that any layer has
    for chain in chains(scopes):
        most |= Counter(components_of(chain[-1]))
    names: dict[str, list[str]] = {}
    for scope in scopes:
        if "=" in scope:
            names.setdefault(scope.partition("=")[0], []).append(scope)
        if not scope.endswith("-N") or "=" in scope:
            continue
        parts = components_of(scope)
        last = parts[-1]
        if most[last] == 1:
            names.setdefault(last, []).append(scope)
        # Numbered names hold even where only some of the layer's scopes are at hand.
        names.setdefault(f"{last}{parts.count(last)}", []).append(scope)
        names.setdefault(scope.removesuffix("-N"), []).append(scope)
        if last == "CROSS":
            names.setdefault("CROSS-N", []).append(scope)
    return {name: list(dict.fromkeys(given)) for name, given in names.items()}


def chains(scopes: Iterable[str]) -> list[list[str]]:
    """The scopes of parts, one list per kind of layer, each scope extending the one before it.

    Layers that are alike have one such list. A scope that several kinds begin with is in each, and
    one of a user's own in none.
    """
    prefixes = [scope for scope in scopes if scope.endswith("-N") and "=" not in scope]
    parts = {scope: components_of(scope) for scope in prefixes}
    ends = [scope for scope in parts if not any(_extends(o, parts[scope]) for o in parts.values())]
    return [
        sorted(
            (s for s in parts if s == end or _extends(parts[end], parts[s])),
            key=lambda s: len(parts[s]),
        )
        for end in ends
    ]


def _extends(longer: Sequence[str], shorter: Sequence[str]) -> bool:
    """Whether one list of components begins with another and goes on."""
    return len(longer) > len(shorter) and longer[: len(shorter)] == shorter


def resolve(name: str, scopes: Sequence[str]) -> str:
    """The scope that `name` (full or short, in any case) means, or an error that lists all."""
    wanted = str(name).strip().upper()
    if wanted in scopes:
        return wanted
    meant = _named(scopes).get(wanted, [])
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UnknownScopeError(
            f"{name!r} could be {' or '.join(meant)}, because these layers differ; write the one "
            "that you mean"
        )
    brief = shortest(scopes)
    raise UnknownScopeError(
        f"unknown scope {name!r}; this model has {', '.join(scopes)}"
        + (f" (short: {', '.join(brief.values())})" if brief else "")
    )


def is_among(name: str, scopes: Iterable[str]) -> bool:
    """Whether a name, perhaps a short one, means one of these scopes."""
    wanted = str(name).strip().upper()
    return wanted in scopes or wanted in aliases(scopes)


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


# Scopes of users' own: some of a layer's components.


#: By full names, "GLOBENC=ATTN+RES1+LN1+LN2-N": the components that they keep (`register_scope`).
OWN_SCOPES: dict[str, tuple[str, ...]] = {}


def register_scope(name: str, components: str | Iterable[str]) -> None:
    """Add a scope that keeps some of a layer's components, to be asked for by `name` in `maps`.

    `components` are short names in the layer's order, from ATTN on, numbered where a layer has
    several of a kind: ``register_scope("globenc", "ATTN RES1 LN1 LN2")`` leaves FF out. What is
    kept acts as in the whole layer: norms divide by the deviation of the model's own vectors, and
    activations have their slopes there. What is left out passes vectors on as they are, and so does
    a residual connection around nothing that is kept. The sum of parts and bias is compared with
    what the kept components make of the layer's real input. A map is called by its name and
    components, ``GLOBENC=ATTN+RES1+LN1+LN2-N``, and its name alone will do; it covers the layers
    that have them all. The same name again replaces the scope.
    """
    wanted, one = str(name).strip().upper(), rf"(?:{_COMPONENT.pattern})\d*"
    if not re.fullmatch(r"[A-Z]\w*", wanted) or re.fullmatch(rf"(?:{one})+|ALL", wanted):
        raise InputError(
            f"register_scope takes a new name of letters, digits and _, not {name!r}, which the "
            "papers' scopes have or which is no such word"
        )
    given = components.split() if isinstance(components, str) else components
    kept = tuple(str(each).strip().upper() for each in given)
    if unknown := [each for each in kept if not re.fullmatch(one, each)]:
        raise InputError(
            f"{listed(unknown)} is no component; take some of ATTN, CROSS, PROJ, RES, LN and FF, "
            "numbered where a layer has several (RES1, LN2)"
        )
    numbers = {"ATTN": 0}  # of each kind, the last that is kept
    for each in kept or ("none",):
        symbol = each.rstrip("0123456789")
        number = int(each.removeprefix(symbol) or 1)
        if number <= numbers.get(symbol, 0) or (symbol != "ATTN" and not numbers["ATTN"]):
            raise InputError(
                f"a scope keeps components once each, in the layer's order, from ATTN on, not "
                f"{' '.join(kept) or 'none'}"
            )
        numbers[symbol] = number
    for scope in [scope for scope in OWN_SCOPES if scope.partition("=")[0] == wanted]:
        del OWN_SCOPES[scope]
    OWN_SCOPES[f"{wanted}={'+'.join(kept)}-N"] = kept


class Step(NamedTuple):
    """A component, by its short name, and the scopes before and after it."""

    component: str
    before: str
    after: str


def consecutive(scopes: Sequence[str]) -> list[Step]:
    """The steps between consecutive scopes: ATTN-W → ATTN-N → ATTNRES-N → … .

    ATTNRES-W is a baseline beside the sequence, not a step of it. Where layers differ, each kind
    of layer has its steps, and those that several kinds share are listed once. Behind the attention
    to another sequence there is nothing of what stood before it, so its step is CROSS-W → CROSS-N.
    """
    steps: dict[str, str] = {}  # after → before
    for chain in chains(scopes):
        start = ["ATTN-W"] if "ATTN-W" in scopes and chain[0] == "ATTN-N" else []
        steps |= {after: before for before, after in pairwise([*start, *chain])}
        for after in (scope for scope in chain if components_of(scope)[-1] == "CROSS"):
            steps.pop(after, None)
            steps |= {after: "CROSS-W"} if "CROSS-W" in scopes else {}
    names = shortest(scopes)
    return [Step(names[after], steps[after], after) for after in scopes if after in steps]


def feed_forward_pairs(scopes: Sequence[str]) -> list[tuple[str, str]]:
    """The scopes just before and just behind each feed-forward block of each kind of layer."""
    behind = [scope for scope in scopes if scope.endswith("FF-N")]
    pairs = [(f"{scope.removesuffix('FF-N')}-N", scope) for scope in behind]
    return [(before, after) for before, after in pairs if before in scopes]


# Layers for people to read: a few of many, and their numbers as text.


def thinned(layers: Sequence[int], most: int) -> list[int]:
    """At most `most` layers, evenly spread, with the first and (from two on) the last."""
    last = len(layers) - 1
    if last < most:
        return list(layers)
    return [layers[round(k * last / max(1, most - 1))] for k in range(most)]


def layers_in_words(layers: Iterable[int]) -> str:
    """Numbers of layers as text: ``layer 4``, ``layers 0–2``, ``layers 3–7 and 9``."""
    numbers = sorted(set(layers))
    runs = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        ends = [layer for _, layer in run]
        runs.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]}–{ends[-1]}")
    return f"layer{'s' * (len(numbers) > 1)} {listed(runs)}"
