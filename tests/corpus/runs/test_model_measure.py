"""Measures that run the model themselves: bound once, batched, failing one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from run_examples import assert_each_once, assert_same_tables, some_fail, tiny_checkpoint

import normlens
from normlens.corpus import Run
from normlens.corpus.engines import block_rows
from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.folder import RunError
from normlens.errors import InputError
from normlens.lens import Lens

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64()),
        pa.field("sequence", pa.string()),
        pa.field("tokens", pa.int32()),
        pa.field("label", pa.string()),
        pa.field("second", pa.int32()),
    ]
)


@dataclass
class Counting(ModelMeasure):
    """Counts tokens; refuses "bad" by a reason and "worse" by an error that ends the batch."""

    apart: bool = False
    refuse: bool = False
    name: ClassVar[str] = "counting"  # type: ignore[misc]
    tables = MappingProxyType({"counted": SCHEMA})
    order = MappingProxyType({"counted": ("index",)})

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, apart=self.apart)

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        if self.refuse:
            raise InputError(f"{lens.name} cannot count")
        return Bound(lens)


class Bound(BoundMeasure):
    def __init__(self, lens: Lens) -> None:
        self.lens = lens
        self.batches: list[int] = []

    def batch_rows(self, items: Sequence[Item], clock: Any) -> list[dict[str, pa.Table] | str]:
        self.batches.append(len(items))
        with clock.on("counting"):
            if any(item.encoded.extra.get("label") == "worse" for item in items):  # type: ignore[attr-defined]
                raise ValueError("cannot be counted")
            return [self._rows(item) for item in items]

    def _rows(self, item: Item) -> dict[str, pa.Table] | str:
        encoded: Any = item.encoded
        if encoded.extra.get("label") == "bad":
            return "it is bad"
        row = {
            "index": item.index,
            "sequence": item.sequence,
            "tokens": len(item),
            "label": encoded.extra.get("label"),
            "second": None if encoded.second is None else len(encoded.second),
        }
        return {"counted": pa.Table.from_pylist([row], schema=SCHEMA)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "labelled.tsv"
    labels = ["0", "1", "bad", "0", "worse", "1", "1"]
    lines = [f"{'ab ' * (n + 1)}\t{label}" for n, label in enumerate(labels)]
    path.write_text("\n".join(["sentence\tlabel", *lines]))
    return path


def counted(checkpoint: Path, data: Path, out: Path, **options: Any) -> Run:
    return normlens.run(
        checkpoint, data, out, measures=[Counting()], extra_columns="label", **options
    )


@some_fail
def test_rows_come_in_batches_and_failures_one_by_one(
    checkpoint: Path, labelled: Path, tmp_path: Path
) -> None:
    run = counted(checkpoint, labelled, tmp_path / "run", batch_size=3)
    table = run.table("counted")
    assert table["index"].tolist() == [0, 1, 3, 5, 6]
    assert table["tokens"].tolist() == [2 + 2 * (n + 1) for n in (0, 1, 3, 5, 6)]
    assert table["label"].tolist() == ["0", "1", "0", "1", "1"]
    failures = run.table("failures").set_index("index")["reason"]
    assert failures[2] == "counting: it is bad"
    assert failures[4] == "counting: ValueError: cannot be counted"
    assert_each_once(run)
    assert run.table("sequences")["completeness"].isna().all()
    assert run.status().stages["counting"] > 0


@some_fail
def test_a_sequence_that_memory_is_too_small_for_is_no_failure_of_its_own(
    checkpoint: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with one line, and goes on where there is more memory."""

    def starved(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr(Bound, "_rows", starved)
    with pytest.raises(RunError, match=r"'counting' ran out of memory at labelled\.tsv:0; "):
        counted(checkpoint, labelled, tmp_path / "run", batch_size=3)
    monkeypatch.undo()
    resumed = normlens.resume(tmp_path / "run", measures=[Counting()], extra_columns="label")
    assert len(resumed.table("counted")) == 5


@some_fail
def test_a_run_goes_on_where_it_was_stopped(
    checkpoint: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = counted(checkpoint, labelled, tmp_path / "whole", block_size=2)
    add, calls = block_rows.Gatherer.add, []

    def once(self: block_rows.Gatherer, prepared: Any, alone: bool) -> Any:
        calls.append(prepared.block.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return add(self, prepared, alone)

    monkeypatch.setattr(block_rows.Gatherer, "add", once)
    with pytest.raises(KeyboardInterrupt):
        counted(checkpoint, labelled, tmp_path / "stopped", block_size=2)
    monkeypatch.undo()
    with pytest.raises(RunError, match="extra-columns"):
        normlens.resume(tmp_path / "stopped", measures=[Counting()], extra_columns="sentence")
    resumed = normlens.resume(tmp_path / "stopped", measures=[Counting()], extra_columns="label")
    assert_same_tables(whole, resumed, tolerance=0)


def test_a_refusal_comes_before_the_run_begins(
    checkpoint: Path, labelled: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot count"):
        normlens.run(checkpoint, labelled, tmp_path / "run", measures=[Counting(refuse=True)])
    assert not (tmp_path / "run" / "manifest.json").exists()


@some_fail
def test_pairs_are_encoded_apart_where_a_measure_asks_for_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": ["abc", "d e"]}\n{"text": "alone"}\n')
    run = normlens.run(checkpoint, path, tmp_path / "run", measures=[Counting(apart=True)])
    table = run.table("counted")
    assert (table["tokens"].tolist(), table["second"].tolist()) == ([5], [4])
    [reason] = run.table("failures")["reason"]
    assert "a pair is needed" in reason


def test_without_a_model_there_are_no_rows() -> None:
    with pytest.raises(InputError, match="runs the model"):
        Counting().rows(Item("x", 0, None, None))  # type: ignore[arg-type]
