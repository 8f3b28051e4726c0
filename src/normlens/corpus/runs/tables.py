"""A run's tables through DuckDB: views over their files, read as far as a query needs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from normlens.corpus.runs.check import Verified
from normlens.corpus.runs.folder import Folder, RemoteFolder, RunError
from normlens.corpus.runs.ledger import File, State, read_state
from normlens.corpus.runs.manifest import Manifest, has_two_stacks
from normlens.corpus.runs.options import MEASURES, NAMES_CODE
from normlens.errors import (
    TABLES,
    InputError,
    NormLensError,
    OutputError,
    check_installed,
    system_reason,
    valid_choice,
)
from normlens.results.store import check_output
from normlens.results.words import harmless_sql

if TYPE_CHECKING:
    import pandas as pd

    from normlens.corpus.measures import Measure

# DuckDB that can open the files it is given and nothing else.


_ASKING = ("SELECT", "FROM", "WITH", "PIVOT", "UNPIVOT")


@contextmanager
def closed_connection(
    memory: str, paths: Sequence[str], system: Any | None = None
) -> Iterator[Any]:
    """Open a database that may read `paths` (through an fsspec `system`) and no other file.

    It loads no extensions, and a query cannot change any of this. Beyond `memory` it goes to a
    temporary folder of its own.
    """
    duckdb = duckdb_module()
    with (
        tempfile.TemporaryDirectory(prefix="normlens-", ignore_cleanup_errors=True) as spill,
        duckdb.connect(":memory:") as connection,
    ):
        connection.execute(f"SET memory_limit = {quoted_text(memory)}")
        connection.execute(f"SET temp_directory = {quoted_text(spill)}")
        connection.execute("SET enable_progress_bar = false")  # it would stand in the answer
        # A query's names are tables of the run, never variables of the calling program.
        connection.execute("SET python_enable_replacements = false")
        if system is not None:
            connection.register_filesystem(system)
        connection.execute(f"SET allowed_paths = [{', '.join(map(quoted_text, paths))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def tables_of(query: str, tables: Collection[str]) -> list[str]:
    """List the tables that a query names; all of them where it names others too, or none.

    Refuses what is no question: the files that may be opened could also be written.
    """
    duckdb = duckdb_module()
    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as connection:
        statements = connection.extract_statements(query)
        if not statements:
            raise InputError("the query gives no table; begin it with SELECT")
        for statement in statements:
            _check_question(connection, statement)
        try:
            named = {str(name).casefold() for name in connection.get_table_names(query)}
        except duckdb.Error:
            return list(tables)
    by_folded_name = {table.casefold(): table for table in tables}
    return (
        [by_folded_name[name] for name in named]
        if named and named <= by_folded_name.keys()
        else list(tables)
    )


def _check_question(connection: Any, statement: Any) -> None:
    kind, text = statement.type.name, statement.query.strip()
    first = re.match(r"\w*", text)
    word = first[0].upper() if first else ""
    if kind == "EXPLAIN":
        try:  # EXPLAIN ANALYZE would run whatever it explains
            [explained] = connection.extract_statements(text[len(word) :])
            kind = explained.type.name
        except (ValueError, duckdb_module().Error):
            word = "EXPLAIN ANALYZE"
    # PIVOT is several statements, and so is whatever holds one.
    asks = kind in ("SELECT", "CREATE") or (kind == "MULTI" and word in _ASKING)
    if not asks:
        raise InputError(
            f"a query asks (SELECT …), and {word or kind} is not allowed in it; write the answer "
            "to a file with --out FILE (in Python: Run.export)"
        )


def duckdb_module() -> Any:
    """DuckDB, or an error that says how to install it."""
    check_installed(TABLES)
    import duckdb

    return duckdb


def quoted_text(value: str) -> str:
    """Quote a string for SQL."""
    return "'" + value.replace("'", "''") + "'"


def quoted_name(value: str) -> str:
    """Quote the name of a table or a column for SQL."""
    return '"' + value.replace('"', '""') + '"'


# Merging the parts of a table by SQL from the measures' code, never from a run's files.


def merging_sql(manifest: Manifest, table: str, named: Sequence[Measure] = ()) -> str | None:
    """Write SQL that merges the rows of all files (`parts`); None for a table that only grows.

    A built-in measure is made again from its recorded options. A user's own has to be among
    `named`: the modules that a run's manifest names are not imported.
    """
    described = manifest.tables[table]
    if not described["merged"]:
        return None
    for measure in named:
        if table in measure.tables:
            return measure.sql.get(table)
    name = str(described["measure"])
    told = manifest.measures.get(name) or {}
    if told.get("source") is not None:
        raise InputError(
            f"the table {table!r} is merged by a measure of your own, which is imported only if "
            f"you name it: --measures {name} (in Python: Run.open(…, measures={name!r}))"
        )
    try:
        if name not in MEASURES:
            raise InputError(f"there is no measure {name!r}")
        return _made(manifest, name, told["options"]).sql[table]
    except (NormLensError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"the manifest describes a measure that cannot be made: {error}") from error


def named_measures(manifest: Manifest, names: Sequence[str]) -> list[Measure]:
    """Make the measures that users name, with the options that the run gave them."""
    for name in names:
        if name not in manifest.options.measures:
            raise InputError(
                f"the run did not take the measure {name!r}; it took: "
                f"{', '.join(manifest.options.measures)}"
            )
    settings = manifest.options.settings
    return [_made(manifest, name, settings.get(name, {})) for name in names if ":" in name]


def _made(manifest: Manifest, name: str, options: dict[str, Any]) -> Measure:
    """Make a measure for a run's model, without the code that its options name."""
    # Measures are slow to import, and a run is mostly asked for its state or for plain tables.
    from normlens.corpus.measures import get
    from normlens.corpus.measures.base import for_two_stacks

    measure = get(name, **{key: value for key, value in options.items() if key not in NAMES_CODE})
    return for_two_stacks(measure) if has_two_stacks(manifest.model) else measure


# Tables as views over their files.


Answer = TypeVar("Answer")

#: What a query may hold in memory; beyond it DuckDB goes to disk.
MEMORY = "2GB"
FORMATS = {
    ".csv": "FORMAT csv, HEADER true",
    ".json": "FORMAT json, ARRAY true",
    ".jsonl": "FORMAT json",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
}


#: What reading files that anybody may have made raises, beside DuckDB's own errors.
_UNREADABLE = (OSError, ValueError, ArithmeticError, MemoryError, RuntimeError)


class UnreadableFile(RunError, InputError):
    """A file of a run cannot be read, or is not what its record says."""


class Tables:
    """The tables of a run, as far as its blocks were done when this was made.

    A table answers only if all of its files match their checksums. DuckDB can open those files and
    nothing else. `named` are measures of the user's own that merge tables of theirs.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        memory: str = MEMORY,
        named: Sequence[Measure] = (),
    ):
        self.folder, self.manifest, self.memory, self.named = folder, manifest, memory, named
        # One state for all tables: blocks that are done later are in none of them.
        self._state = self._read()

    def _read(self) -> State:
        state = read_state(self.folder, self.manifest)
        if not state.records:
            raise InputError(
                f"no block of {str(self.folder)!r} is done yet; see: normlens status {self.folder}"
            )
        return state

    @property
    def complete(self) -> bool:
        """Whether every block of the run is in them."""
        return self._state.blocks_done == self.manifest.blocks

    def table(self, name: str) -> pd.DataFrame:
        """Read a whole table, in its measure's order."""
        valid_choice(name, tuple(self.manifest.tables), "table")
        described = self.manifest.tables[name]
        keys = list(map(quoted_name, described["order"]))
        with self._explained(), self._connected([name]) as connection:
            if self._merging(name) is not None:
                order = ", ".join(keys)
                return connection.sql(f"SELECT * FROM {quoted_name(name)} ORDER BY {order}").df()
            # Rows of one sequence keep the order in which its measure gave them. They lie in one
            # file; without the sequence, the order of files has to do.
            if "index" in described["columns"]:
                rows, place = self._rows(name, "file_row_number = true"), "file_row_number"
                keys += [] if '"index"' in keys else ['"index"']
            else:
                place = "row_of_table"
                numbered = f"row_number() OVER () AS {place}"
                rows = f"(SELECT *, {numbered} FROM {self._rows(name)})"
            order = ", ".join([*keys, place])
            return connection.sql(f"SELECT * EXCLUDE ({place}) FROM {rows} ORDER BY {order}").df()

    def sql(self, query: str) -> pd.DataFrame:
        """Answer a query."""

        def answer(connection: Any) -> pd.DataFrame:
            relation = connection.sql(query)
            if relation is None:
                raise InputError("the query gives no table; begin it with SELECT")
            return relation.df()

        return self._asked(query, answer)

    def export(self, query: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a query's answer to a file, without holding all of it in memory."""
        target = Path(path)
        options = FORMATS[valid_choice(target.suffix, tuple(FORMATS), "file type")]
        check_output(target, overwrite=overwrite)
        temporary = target.absolute().with_name(f".{target.name}.{os.getpid()}.tmp")

        query = query.strip().rstrip(";")

        def copy(connection: Any) -> None:
            safe = query
            if target.suffix == ".csv":
                safe = harmless_sql(query, _described(connection, query))
            connection.execute(
                f"COPY ({safe}\n) TO {quoted_text(str(temporary))} ({options}, USE_TMP_FILE false)"
            )

        try:
            self._asked(query, copy, str(temporary))
            os.replace(temporary, target)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return target

    def _asked(self, query: str, use: Callable[[Any], Answer], *writable: str) -> Answer:
        """Use a connection that knows the tables that a query names."""
        duckdb = duckdb_module()
        with self._explained():
            wanted = tables_of(query, self.manifest.tables)
            with self._connected(wanted, *writable) as connection:
                try:
                    return use(connection)
                except duckdb.CatalogException:
                    if len(wanted) == len(self.manifest.tables):
                        raise
            # A table may be named in a way that only DuckDB itself understands.
            with self._connected(list(self.manifest.tables), *writable) as connection:
                return use(connection)

    @contextmanager
    def _connected(self, tables: Sequence[str], *writable: str) -> Iterator[Any]:
        """Open DuckDB with these tables, once their files have proved sound."""
        files = [file for table in tables for file in self._state.files(table)]
        self._verify(files)
        paths = [*(self.folder.address(file.name) for file in files), *writable]
        system = self.folder.system if isinstance(self.folder, RemoteFolder) else None
        with closed_connection(self.memory, paths, system) as connection:
            for name in tables:
                merging = self._merging(name)
                view = f"SELECT * FROM {self._rows(name)}"
                if merging is not None:
                    view = f"WITH parts AS ({view}) SELECT * FROM ({merging})"
                connection.execute(f"CREATE VIEW {quoted_name(name)} AS {view}")
            yield connection

    def _verify(self, files: Sequence[File]) -> None:
        """Raise an error unless all of these files match their checksums."""
        wrong = Verified(self.folder).wrong(files)
        if wrong:
            name, what = next(iter(wrong.items()))
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise UnreadableFile(
                f"{name} in {str(self.folder)!r} is {what}{more}; see all with normlens check "
                f"{self.folder}, compute them again with normlens run --resume {self.folder}"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise what DuckDB, or the store that it reads from, raises as one line."""
        import duckdb

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
        except (duckdb.IOException, duckdb.PermissionException) as error:
            # Where a file is gone, DuckDB looks for a folder of its name, which it may not.
            raise UnreadableFile(_first(error)) from error
        except duckdb.Error as error:
            raise InputError(_first(error)) from error
        except Exception as error:
            # DuckDB passes on what a store raises, and each store has exceptions of its own. What a
            # file holds may be more than pandas takes, or no text where DuckDB quotes it.
            if not isinstance(error, _UNREADABLE) and not isinstance(self.folder, RemoteFolder):
                raise
            raise UnreadableFile(f"cannot read {self.folder}: {system_reason(error)}") from error

    def _merging(self, table: str) -> str | None:
        return merging_sql(self.manifest, table, self.named)

    def _rows(self, table: str, *options: str) -> str:
        names = (file.name for file in self._state.files(table))
        files = ", ".join(quoted_text(self.folder.address(name)) for name in names)
        # Folders called a=b would otherwise become columns.
        listed = [f"[{files}]", "hive_partitioning = false", *options]
        return f"read_parquet({', '.join(listed)})"


def _first(error: BaseException) -> str:
    """Find the line of DuckDB's message that says what is wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "Traceback" in "".join(lines[:1]):  # an exception of Python, as text
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    return next(iter(lines), type(error).__name__)


def _described(connection: Any, query: str) -> list[tuple[str, str]]:
    """Describe the columns of a query's answer: names and types."""
    rows = connection.execute(f"DESCRIBE ({query}\n)").fetchall()
    return [(str(name), str(kind)) for name, kind, *_ in rows]
