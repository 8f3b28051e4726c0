"""What a run has given so far: its state and its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.corpus.runs.check import Check, check
from normlens.corpus.runs.folder import Folder, open_folder
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.options import Execution, RunOptions, parse_measures
from normlens.corpus.runs.status import Status, status_of
from normlens.corpus.runs.tables import Tables, named_measures
from normlens.errors import NormLensError
from normlens.options import shows_fields_of

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack

    from normlens._keywords import RunKeywords
    from normlens.corpus.data.records import Data
    from normlens.corpus.measures import Measure
    from normlens.corpus.runs.progress import Progress
    from normlens.lens import Lens


class Run:
    """A run's folder: how far it is, and its tables."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        measures: Sequence[Measure] = (),
        given: RunKeywords | None = None,
    ):
        self.folder, self.manifest = folder, manifest
        #: measures of the user's own, and what `resume` is to be given again
        self._measures = measures
        self._given: RunKeywords = {} if given is None else given

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, measures: str | Sequence[str] | None = None
    ) -> Run:
        """The run in a folder, finished or not.

        Nothing that the run names is imported. A measure of your own that merges blocks
        (``my_module:my_measure``) has to be named in `measures` for its tables to be read.
        """
        folder = open_folder(path)
        manifest = Manifest.load(folder)
        named = () if measures is None else parse_measures(measures)
        return cls(folder, manifest, named_measures(manifest, named))

    @property
    def tables(self) -> list[str]:
        return list(self.manifest.tables)

    def status(self) -> Status:
        """What is done and left, how fast, where the time goes, and what goes on now."""
        return status_of(self.folder, self.manifest)

    def table(self, name: str) -> pd.DataFrame:
        """A whole table in its own order; `sql` is for those that do not fit into memory."""
        return self.snapshot().table(name)

    def sql(self, query: str) -> pd.DataFrame:
        """The answer to an SQL query over the run's tables (DuckDB's SQL)."""
        return self.snapshot().sql(query)

    def export(self, query: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the answer to a query to a .csv, .json or .parquet file, row by row."""
        return self.snapshot().export(query, path, overwrite=overwrite)

    def check(self) -> Check:
        """Read every file and compare it with its checksum; find what is missing or stray."""
        return check(self.folder, self.manifest)

    @shows_fields_of(RunOptions, Execution, without=("model", "data"))
    def resume(
        self,
        *,
        model: Lens | str | os.PathLike[str] | None = None,
        data: Data | str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        **options: Unpack[RunKeywords],
    ) -> Run:
        """Finish the run; the options are those of `normlens.resume`."""
        # Computing needs torch, which is slow to import; reading tables does not.
        from normlens.corpus.runs.runs import resume

        given: RunKeywords = {**self._given, **options}
        return resume(self.folder.url, model=model, data=data, progress=progress, **given)

    def snapshot(self) -> Tables:
        """The tables as they are now, for several questions to one state of a run."""
        return Tables(self.folder, self.manifest, named=self._measures)

    def __repr__(self) -> str:
        model, data = self.manifest.model["name"], self.manifest.data["name"]
        try:
            status = self.status()
            counts = f"{status.done} of {status.sequences} sequences done, {status.failures} failed"
        except NormLensError:
            counts = "its records cannot be read"
        return f"Run({self.folder.url!r}: {model} on {data}, {counts})"


def failures_told(folder: Folder, failures: int, sequences: int) -> str:
    """How many sequences of a run failed, and where the reasons are."""
    return (
        f"{failures} of {sequences} sequences failed; see: "
        f'normlens query {folder} "SELECT * FROM failures"'
    )
