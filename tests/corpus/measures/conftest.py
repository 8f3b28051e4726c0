"""The tables of measures are read with DuckDB."""

import pytest

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
