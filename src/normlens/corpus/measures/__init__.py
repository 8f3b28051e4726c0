"""Measures on the maps of a corpus: each turns a sequence into rows of tables.

>>> from normlens import measures
>>> for measure in measures.parse("similarity,mixing"):
...     tables = measure.rows(measures.Item("text-0", 0, maps, encoded))
"""

from normlens.corpus.measures.base import BoundMeasure, Item, Measure, ModelMeasure, Needs
from normlens.corpus.measures.registry import get, measure, names, parse

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
