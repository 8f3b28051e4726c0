"""What a run is given: names and paths, or a user's objects."""

from __future__ import annotations

import os
from typing import Any

from normlens.corpus.data.readers import NAME, MemoryData, find_data, is_in_memory, open_data
from normlens.corpus.data.records import Data, ReadOptions
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.paths import OBJECT, fixed_path, model_name
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.loading.load import load


def given_model(model: Any, execution: Execution) -> tuple[Lens | None, str]:
    """The lens of a model that was passed as an object, and what the run calls the model."""
    if isinstance(model, Lens):
        return model, model_name(model)
    if model is None or isinstance(model, (str, os.PathLike)):
        return None, "" if model is None else model_name(model)
    lens = load(model, device=execution.device, dtype=execution.dtype)
    return lens, f"{lens.source}{OBJECT}"


def data_name(data: Any) -> str:
    """What a run calls its data."""
    if is_in_memory(data):
        return NAME
    return data.name if isinstance(data, Data) else fixed_path(data)


def data_to_compare(options: RunOptions, given: Any) -> Data:
    """The data set of a run that is resumed.

    Whoever wrote the run's files may have named any file, so nothing is read of one that only they
    name before its fingerprint is compared.
    """
    if given is None:
        return find_data(options.data, _reading(options), options.limit)
    return opened_data(options, given)


def _reading(options: RunOptions) -> ReadOptions:
    return ReadOptions(
        options.column, options.pair_column, options.paragraphs, options.extra_columns
    )


def opened_data(options: RunOptions, given: Any) -> Data:
    """The data set that was passed, or the one that the options name."""
    if isinstance(given, Data):
        return given
    if given is not None and is_in_memory(given):
        if options.paragraphs:
            raise InputError("paragraphs are for .txt files; leave it out for data in memory")
        return MemoryData(given, _reading(options), options.limit)
    return open_data(
        options.data,
        column=options.column,
        pair_column=options.pair_column,
        paragraphs=options.paragraphs,
        limit=options.limit,
        extra=options.extra_columns,
    )
