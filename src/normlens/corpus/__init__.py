"""Corpora: data sets with word and entity spans, and runs over them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.corpus.masking import SHARE, mask_tokens
    from normlens.corpus.named import NAMED
    from normlens.corpus.readers import open_data
    from normlens.corpus.records import Data, Entity, Record
    from normlens.corpus.results import Run
    from normlens.corpus.runs import resume, run
    from normlens.corpus.spans import EncodedRecord, encode_record

# As in `normlens` itself, a name brings its module when it is first used.
_HOMES = {
    "NAMED": "named",
    "SHARE": "masking",
    "Data": "records",
    "EncodedRecord": "spans",
    "Entity": "records",
    "Record": "records",
    "Run": "results",
    "encode_record": "spans",
    "mask_tokens": "masking",
    "open_data": "readers",
    "resume": "runs",
    "run": "runs",
}

__all__ = [
    "NAMED",
    "SHARE",
    "Data",
    "EncodedRecord",
    "Entity",
    "Record",
    "Run",
    "encode_record",
    "mask_tokens",
    "open_data",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'normlens.corpus' has no attribute {name!r}")
    return getattr(import_module(f"normlens.corpus.{_HOMES[name]}"), name)
