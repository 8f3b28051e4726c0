"""Which measures a run takes, and what its manifest says of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.options import parse_measures
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.measures import Measure


@dataclass(frozen=True)
class Choice:
    """Measures and the names that they were asked for by."""

    names: tuple[str, ...]
    measures: tuple[Measure, ...]
    #: what other processes get: a name where there was one, because a function that a user made a
    #: measure of cannot be pickled
    portable: tuple[str | Measure, ...]

    @classmethod
    def of(
        cls,
        wanted: str | Sequence[str | Measure] | None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Choice:
        """Measures by name, with their `settings`, or ready ones."""
        from normlens import measures

        listed = parse_measures(wanted) if wanted is None or isinstance(wanted, str) else wanted
        names = [m if isinstance(m, str) else m.name for m in listed]
        left = dict(settings or {})
        portable: list[str | Measure] = []
        for measure in listed:
            own = left.pop(measure, None) if isinstance(measure, str) else None
            portable.append(measure if own is None else measures.get(str(measure), **own))
        if left:
            raise InputError(
                f"there are settings for {next(iter(left))!r}, which is not among the measures "
                f"{', '.join(names)}"
            )
        return cls(tuple(names), made(portable), tuple(portable))

    def described(self) -> dict[str, Any]:
        """What the measures' numbers depend on beside the version of NormLens."""
        found: dict[str, dict[str, Any]] = {
            name: {"options": measure.options, "source": _source_hash(name)}
            for name, measure in zip(self.names, self.measures, strict=True)
        }
        for described in found.values():
            relations = described["options"].get("relations", ())
            if relations:
                described["relations"] = {name: _source_hash(name) for name in relations}
        return json.loads(json.dumps(found, default=str))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every table with what is needed to read it, should its measure be out of reach."""
        from normlens.corpus.gathering import schemas

        owners = {table: measure for measure in self.measures for table in measure.tables}
        found: dict[str, dict[str, Any]] = {}
        for table, schema in schemas(self.measures).items():
            measure = owners.get(table)
            found[table] = {
                "measure": None if measure is None else measure.name,
                "columns": {field.name: str(field.type) for field in schema},
                "sql": None if measure is None else measure.sql.get(table),
                "order": ["index"] if measure is None else list(measure.order[table]),
            }
        return found


def made(listed: Sequence[str | Measure]) -> tuple[Measure, ...]:
    """The measures behind names."""
    from normlens import measures

    return tuple(measures.get(m) if isinstance(m, str) else m for m in listed)


def _source_hash(name: str) -> str | None:
    """SHA-256 of the module that a measure of one's own ("module:measure") comes from."""
    module, separator, _ = name.partition(":")
    if not separator:
        return None
    path = getattr(sys.modules.get(module), "__file__", None) or getattr(
        importlib.util.find_spec(module), "origin", None
    )
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
