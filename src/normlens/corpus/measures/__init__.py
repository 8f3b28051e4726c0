"""Measures on the maps of a corpus: each turns a sequence into rows of tables.

>>> from normlens import measures
>>> for measure in measures.parse("similarity,mixing"):
...     tables = measure.rows(measures.Item("text-0", 0, maps, encoded))
"""

from normlens.corpus.measures.base import Item, Measure, Needs
from normlens.corpus.measures.model_measure import BoundMeasure, ModelMeasure
from normlens.corpus.measures.registry import get, names, parse
from normlens.corpus.measures.user_measure import measure

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
