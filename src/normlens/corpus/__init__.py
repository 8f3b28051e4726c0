"""Corpora: data sets with word and entity spans, and runs over them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.corpus.data.readers import NAMED, open_data
    from normlens.corpus.data.records import Data, Entity, Record
    from normlens.corpus.data.spans import SHARE, EncodedRecord, encode_record, mask_tokens
    from normlens.corpus.runs.results import Run
    from normlens.corpus.runs.runs import resume, run

# As in `normlens` itself, a name brings its module when it is first used.
_HOMES = {
    **dict.fromkeys(("NAMED", "open_data"), "data.readers"),
    **dict.fromkeys(("Data", "Entity", "Record"), "data.records"),
    **dict.fromkeys(("SHARE", "EncodedRecord", "encode_record", "mask_tokens"), "data.spans"),
    "Run": "runs.results",
    **dict.fromkeys(("resume", "run"), "runs.runs"),
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
