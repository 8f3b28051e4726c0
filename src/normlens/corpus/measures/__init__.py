"""Measures on the maps of a corpus: each turns a sequence into rows of tables.

>>> from normlens.corpus import measures
>>> for measure in measures.parse("similarity,mixing"):
...     tables = measure.rows(measures.Item("text-0", 0, maps, encoded))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from normlens.corpus.measures.amplification import Amplification
from normlens.corpus.measures.base import BoundMeasure, Item, Measure, ModelMeasure, Needs
from normlens.corpus.measures.rows import ExplanationsMeasure, Heads, Mixing, Norms, Similarity
from normlens.corpus.measures.user_code import imported, measure
from normlens.errors import InputError

__all__ = [
    "BoundMeasure",
    "Item",
    "Measure",
    "ModelMeasure",
    "Needs",
    "get",
    "measure",
    "names",
    "parse",
]

BUILT_IN: dict[str, Callable[..., Measure]] = {
    "similarity": Similarity,
    "mixing": Mixing,
    "amplification": Amplification,
    "norms": Norms,
    "heads": Heads,
    "explanations": ExplanationsMeasure,
}


#: Measures that run the model, behind commands of their own; their modules need torch.
OF_MODEL = {
    "faithfulness": "normlens.studies.faithfulness.measure:FaithfulnessMeasure",
    "ablation": "normlens.studies.ablation.measure:AblationMeasure",
    "alignment": "normlens.studies.alignment.align:AlignmentMeasure",
}


def names() -> list[str]:
    """List the names of the built-in measures of maps and explanations."""
    return list(BUILT_IN)


def get(name: str, **options: Any) -> Measure:
    """Make a measure by its name, or by module and name (``my_module:my_measure``)."""
    wanted = str(name).strip()
    path = OF_MODEL.get(wanted, wanted)
    if ":" in path:
        return _made(imported(path, "measure", _is_measure), wanted, options)
    if wanted not in BUILT_IN:
        raise InputError(
            f"unknown measure {wanted!r}; choose one of: {', '.join(names())}, or your own as "
            "my_module:my_measure"
        )
    return _made(BUILT_IN[wanted], wanted, options)


def parse(
    given: str | Iterable[str], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Measure]:
    """Make several measures: ``"similarity,mixing"`` or a list of names; `options` by name."""
    listed = given.split(",") if isinstance(given, str) else [str(name) for name in given]
    wanted = list(dict.fromkeys(name.strip() for name in listed if name.strip()))
    if not wanted:
        raise InputError(f"no measure is chosen; choose some of: {', '.join(BUILT_IN)}")
    unused = [name for name in options or {} if name not in wanted]
    if unused:
        raise InputError(f"options for {unused[0]!r}, which is not among {', '.join(wanted)}")
    chosen = [get(name, **(options or {}).get(name, {})) for name in wanted]
    owners: dict[str, str] = {}
    for one in chosen:
        for table in one.tables:
            if table in owners:
                raise InputError(
                    f"the measures {owners[table]!r} and {one.name!r} both write a table "
                    f"{table!r}; rename one of them"
                )
            owners[table] = one.name
    return chosen


def _made(target: Any, name: str, options: dict[str, Any]) -> Measure:
    """Call a measure's factory with these options, or take a measure that is ready."""
    if not isinstance(target, type) and isinstance(target, Measure):
        if options:
            raise InputError(f"the measure {name!r} takes no options, got {', '.join(options)}")
        return target
    if not isinstance(target, type):
        raise InputError(
            f"{name!r} is a {type(target).__name__}, not a measure; put above the function: "
            '@normlens.corpus.measures.measure(schema={"layer": int, "value": float})'
        )
    try:
        made = target(**options)
    except TypeError as error:
        raise InputError(f"the measure {name!r} cannot be made: {error}") from error
    if not isinstance(made, Measure):
        raise InputError(f"{name!r} is not a measure; see normlens.corpus.measures.Measure")
    return made


def _is_measure(value: Any) -> bool:
    return isinstance(value, Measure)
