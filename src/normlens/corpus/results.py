"""What a run has given so far: its state and its tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.folder import Folder, open_folder
from normlens.corpus.manifest import Manifest
from normlens.corpus.status import Status, status_of
from normlens.corpus.tables import Tables

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A run's folder: how far it is, and its tables."""

    def __init__(self, folder: Folder, manifest: Manifest):
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """The run in a folder, finished or not."""
        folder = open_folder(path)
        return cls(folder, Manifest.load(folder))

    @property
    def tables(self) -> list[str]:
        return list(self.manifest.tables)

    def status(self) -> Status:
        """What is done and left, how fast, and where the time goes."""
        return status_of(self.folder, self.manifest)

    def table(self, name: str) -> pd.DataFrame:
        """A whole table in its own order; `sql` is for those that do not fit into memory."""
        return Tables(self.folder, self.manifest).table(name)

    def sql(self, query: str) -> pd.DataFrame:
        """The answer to an SQL query over the run's tables (DuckDB's SQL)."""
        return Tables(self.folder, self.manifest).sql(query)

    def export(self, query: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the answer to a query to a .csv, .json or .parquet file, row by row."""
        return Tables(self.folder, self.manifest).export(query, path, overwrite=overwrite)

    def resume(self, **options: Any) -> Run:
        """Finish the run; the options are those of `resume`."""
        from normlens.corpus.runs import resume

        return resume(self.folder.url, **options)

    def __repr__(self) -> str:
        model, data = self.manifest.model["name"], self.manifest.data["name"]
        return f"Run({self.folder.url!r}: {model} on {data})"
