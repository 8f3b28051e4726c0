"""The scopes before and after the feed-forward block, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from normlens.results.maps import Maps
from normlens.scopes import chains, components_of, is_among

ScopePair = tuple[str, str]


def _prefixes(scopes: Iterable[str]) -> dict[tuple[str, ...], str]:
    return {tuple(components_of(scope)): scope for scope in scopes if scope.endswith("-N")}


def feed_forward_pair(scopes: Iterable[str]) -> ScopePair | None:
    """Find the scope just before the feed-forward block and the one that ends with it.

    A block that mixes nothing has none: it stands beside the attention, before any residual.
    """
    named = _prefixes(scopes)
    longest = max(named, key=len, default=())
    if "RES" not in longest or "FF" not in longest[longest.index("RES") :]:
        return None
    place = longest.index("FF", longest.index("RES"))
    before, after = named.get(longest[:place]), named.get(longest[: place + 1])
    return None if before is None or after is None else (before, after)


def whole_block_pair(scopes: Iterable[str]) -> ScopePair | None:
    """Find the scope behind the residual before FF and the whole layer (FF, residual, norms).

    That residual is the layer's first, or with two attentions that of the second.
    """
    named = _prefixes(scopes)
    longest = max(named, key=len, default=())
    start = longest.index("CROSS") if "CROSS" in longest else 0
    if "RES" not in longest[start:]:
        return None
    before, after = named.get(longest[: longest.index("RES", start) + 1]), named[longest]
    return None if before is None or before == after else (before, after)


def feed_forward_pairs(scopes: Iterable[str]) -> list[ScopePair]:
    """`feed_forward_pair` of each kind of layer, where layers differ."""
    pairs = [feed_forward_pair(chain) for chain in chains(scopes)]
    return [pair for pair in dict.fromkeys(pairs) if pair is not None]


def default_pairs(scopes: Iterable[str]) -> list[ScopePair]:
    """Find the pairs that FF-amp is taken of: before FF / FF, and before LN1 / the whole layer.

    Kobayashi et al. 2024, section 5. In BERT: ATTNRESLN-N / ATTNRESLNFF-N and ATTNRES-N /
    ATTNRESLNFFRESLN-N. A layer whose block stands beside the attention has neither. Where layers
    differ, each kind of layer has its pairs.
    """
    pairs = [
        pair(chain) for chain in chains(scopes) for pair in (feed_forward_pair, whole_block_pair)
    ]
    return [pair for pair in dict.fromkeys(pairs) if pair is not None]


def of_other_stack(pair: ScopePair, maps: Maps) -> bool:
    """Whether both scopes, perhaps by short names, are of a stack that these maps are not of."""
    if maps.provenance.get("stack") == "encoder":
        return not _are_among(pair, maps.scopes)  # the decoder's maps know those of both
    other = maps.encoder
    return (
        other is not None and _are_among(pair, other.scopes) and not _are_among(pair, maps.scopes)
    )


def _are_among(pair: ScopePair, scopes: Sequence[str]) -> bool:
    return all(is_among(name, scopes) for name in pair)
