"""Measures on the maps of a corpus: each turns a sequence into rows of tables.

>>> from normlens.corpus import measures
>>> measure = measures.get("similarity")
>>> tables = measure.rows(measures.Item("text-0", 0, maps, encoded))
"""

from __future__ import annotations

from collections.abc import Callable
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
    if ":" not in path and wanted not in BUILT_IN:
        raise InputError(
            f"unknown measure {wanted!r}; choose one of: {', '.join(names())}, or your own as "
            "my_module:my_measure"
        )
    if ":" not in path:
        target: Any = BUILT_IN[wanted]
    else:
        target = imported(path, "measure", lambda value: isinstance(value, Measure))
    if isinstance(target, type):
        try:
            target = target(**options)
        except TypeError as error:
            raise InputError(f"the measure {wanted!r} cannot be made: {error}") from error
    elif options:
        raise InputError(f"the measure {wanted!r} takes no options, got {', '.join(options)}")
    if not isinstance(target, Measure):
        raise InputError(
            f"{wanted!r} is a {type(target).__name__}, not a measure; put above the function: "
            '@normlens.corpus.measures.measure(schema={"layer": int, "value": float})'
        )
    return target
