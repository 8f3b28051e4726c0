"""Relations of a user's own between two tokens: their names in the tables."""

from __future__ import annotations

from normlens.corpus.measures.tokens import GROUPS, RELATIONS
from normlens.corpus.measures.user_imports import imported
from normlens.errors import InputError


def called(name: str) -> str:
    """Name a relation ``my_module:my_relation`` as the tables do."""
    return name.rpartition(":")[2].rpartition(".")[2]


def check_names(relations: tuple[str, ...]) -> None:
    """Raise where two relations have one name, or where one cannot be imported."""
    names = [*map(called, relations)]
    for name, full in zip(names, relations, strict=True):
        if names.count(name) > 1 or name in RELATIONS or name in GROUPS:
            raise InputError(f"another relation is called {name!r} already; rename {full!r}")
        imported(full, "relation")
