"""A run's tables through DuckDB: views over the shards' files, read as far as a query needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.folder import Folder, RemoteFolder, reason_of
from normlens.corpus.manifest import Manifest
from normlens.corpus.shards import ROOT, SUFFIX, records, table_name
from normlens.errors import (
    InputError,
    MissingDependencyError,
    NormLensError,
    OutputError,
    valid_choice,
)
from normlens.spreadsheet import harmless_sql
from normlens.store import check_output

if TYPE_CHECKING:
    import pandas as pd

#: What a query may hold in memory; beyond it DuckDB goes to disk.
MEMORY = "2GB"
FORMATS = {
    ".csv": "FORMAT csv, HEADER true",
    ".json": "FORMAT json, ARRAY true",
    ".jsonl": "FORMAT json",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
}


class Tables:
    """The tables of a run, as far as its shards are done."""

    def __init__(self, folder: Folder, manifest: Manifest, memory: str = MEMORY):
        self.folder, self.manifest, self.memory = folder, manifest, memory

    def table(self, name: str) -> pd.DataFrame:
        """A whole table, in its own order."""
        valid_choice(name, tuple(self.manifest.tables), "table")
        described = self.manifest.tables[name]
        order = ", ".join(f'"{column}"' for column in described["order"])
        if described["sql"]:
            return self.sql(f'SELECT * FROM "{name}" ORDER BY {order}')
        # Rows of one sequence keep the order in which its measure gave them.
        done, names = self._done()
        files = self._files(name, done, names, "file_row_number = true")
        return self.sql(
            f"SELECT * EXCLUDE (file_row_number) FROM {files} ORDER BY {order}, file_row_number"
        )

    def sql(self, query: str) -> pd.DataFrame:
        """A query's answer."""
        with self._explained(), self._connected() as connection:
            answer = connection.sql(query)
            if answer is None:
                raise InputError("the query gives no table; begin it with SELECT")
            return answer.df()

    def export(self, query: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """A query's answer as a file, without ever being whole in memory."""
        target = Path(path)
        options = FORMATS[valid_choice(target.suffix, tuple(FORMATS), "file type")]
        check_output(target, overwrite=overwrite)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        query = query.strip().rstrip(";")
        try:
            with self._explained(), self._connected() as connection:
                if target.suffix == ".csv":
                    query = harmless_sql(query, _described(connection, query))
                connection.execute(f"COPY ({query}\n) TO {_text(str(temporary))} ({options})")
            os.replace(temporary, target)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return target

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        duckdb = _duckdb()
        views = self._views()
        with (
            tempfile.TemporaryDirectory(prefix="normlens-", ignore_cleanup_errors=True) as spill,
            duckdb.connect(":memory:") as connection,
        ):
            connection.execute(f"SET memory_limit = {_text(self.memory)}")
            connection.execute(f"SET temp_directory = {_text(spill)}")
            # A query's names are tables of the run, never variables of the calling program.
            connection.execute("SET python_enable_replacements = false")
            if isinstance(self.folder, RemoteFolder):
                connection.register_filesystem(self.folder.system)
            for name, view in views.items():
                connection.execute(f'CREATE VIEW "{name}" AS {view}')
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What DuckDB, and the store that it reads from, have to say: one line."""
        duckdb = _duckdb()
        try:
            yield
        except NormLensError:
            raise
        except duckdb.CatalogException as error:
            raise InputError(
                f"{_first(error)}; the run's tables are: {', '.join(self.manifest.tables)}"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise InputError(
                f"the query needs more than {self.memory} of memory, or than the disk has room "
                "for; ask for fewer rows or columns, or aggregate them"
            ) from error
        except duckdb.Error as error:
            raise InputError(_first(error)) from error
        except Exception as error:
            # DuckDB passes on what a store raises, and each store has exceptions of its own.
            if not isinstance(error, OSError) and not isinstance(self.folder, RemoteFolder):
                raise
            raise InputError(f"cannot read {self.folder}: {reason_of(error)}") from error

    def _views(self) -> dict[str, str]:
        """SQL for every table over the files of shards that are done."""
        done, names = self._done()
        views = {}
        for table, described in self.manifest.tables.items():
            view = f"SELECT * FROM {self._files(table, done, names)}"
            if described["sql"]:
                view = f"WITH parts AS ({view}) SELECT * FROM ({described['sql']})"
            views[table] = view
        return views

    def _done(self) -> tuple[list[int], list[str]]:
        """Numbers of the shards that are done, and every file."""
        names = self.folder.names()
        done = sorted(shard.number for shard in records(self.folder, names))
        if not done:
            raise InputError(
                f"no shard of {str(self.folder)!r} is done yet; see: normlens status {self.folder}"
            )
        return done, names

    def _files(self, table: str, done: list[int], names: list[str], *options: str) -> str:
        folder = f"{ROOT}/{table}/"
        there = [name for name in names if name.startswith(folder) and name.endswith(SUFFIX)]
        # A shard that is being written has files already but does not count yet.
        if len(there) == len(done):
            files = _text(self.folder.address(f"{folder}*{SUFFIX}"))
        else:
            files = ", ".join(_text(self.folder.address(table_name(table, n))) for n in done)
            files = f"[{files}]"
        return f"read_parquet({', '.join([files, *options])})"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "reading a run's tables needs DuckDB; run: pip install 'normlens[corpus]'"
        ) from error
    return duckdb


def _first(error: BaseException) -> str:
    """The line of DuckDB's message that says what is wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "Traceback" in "".join(lines[:1]):  # an exception of Python, as text
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    return next(iter(lines), type(error).__name__)


def _described(connection: Any, query: str) -> list[tuple[str, str]]:
    """Names and types of the columns of a query's answer."""
    rows = connection.execute(f"DESCRIBE ({query}\n)").fetchall()
    return [(str(name), str(kind)) for name, kind, *_ in rows]


def _text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"
