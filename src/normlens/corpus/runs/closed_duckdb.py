"""DuckDB that can open the files it is given and nothing else."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from normlens.errors import TABLES, InputError, check_installed

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
