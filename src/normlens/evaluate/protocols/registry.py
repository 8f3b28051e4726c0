"""Protocols by name, and which of them a question is put to unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from normlens.errors import InputError, valid_choice
from normlens.evaluate.protocols.aopc import Aopc
from normlens.evaluate.protocols.base import Protocol
from normlens.evaluate.protocols.comprehensiveness import Comprehensiveness
from normlens.evaluate.protocols.contrast_drops import ContrastDropEnd, ContrastDropRandom
from normlens.evaluate.protocols.cosine_aopc import CosineAopc
from normlens.evaluate.protocols.evidence import Evidence
from normlens.evaluate.protocols.sufficiency import Sufficiency

PROTOCOLS: dict[str, type[Protocol]] = {
    protocol.name: protocol
    for protocol in (
        Aopc,
        Comprehensiveness,
        Sufficiency,
        Evidence,
        ContrastDropEnd,
        ContrastDropRandom,
        CosineAopc,
    )
}


def get(name: str) -> type[Protocol]:
    """The protocol of a name."""
    return PROTOCOLS[valid_choice(name, tuple(PROTOCOLS), "protocol")]


def kind_of(names: Sequence[str]) -> str:
    """The kind of question that these protocols are about, which must be one."""
    by_kind: dict[str, str] = {}
    for name in names:
        by_kind.setdefault(get(name).kind, name)
    if len(by_kind) > 1:
        first, second, *_ = by_kind.values()
        raise InputError(
            f"{first} and {second} are about different kinds of models; take one evaluation for "
            "each"
        )
    return next(iter(by_kind))


def of_kind(kind: str) -> list[str]:
    """The protocols for a kind of question."""
    return [name for name, protocol in PROTOCOLS.items() if protocol.kind == kind]
