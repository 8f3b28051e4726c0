"""Runs whose tables are made up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import Settings

duckdb = pytest.importorskip("duckdb", reason="reading tables needs DuckDB")


@dataclass
class FrameRun:
    """A run whose tables are frames."""

    frames: dict[str, pd.DataFrame]
    scopes: list[str]
    causal: bool = False
    name: str = "tiny"

    @property
    def manifest(self) -> Any:
        described = {"name": self.name, "scopes": self.scopes, "causal": self.causal, "layers": 4}
        return SimpleNamespace(model=described)

    @property
    def tables(self) -> list[str]:
        return list(self.frames)

    @cached_property
    def _connection(self) -> Any:
        """Opened at the first question, and then kept: an experiment asks many."""
        connection = duckdb.connect(":memory:")
        for name, frame in self.frames.items():
            connection.register(name, frame)
        return connection

    def sql(self, query: str) -> pd.DataFrame:
        return self._connection.sql(query).df()


def evidence_of(run: Any, data: str = "here", folder: Path = Path(), **settings: Any) -> Evidence:
    """What an experiment reads of a run."""
    asked = {"kinds": ("ff", "mixing"), "model": "tiny", "data": (data,), "resamples": 200}
    return Evidence(data, run, folder, settings=Settings(**asked | settings))
