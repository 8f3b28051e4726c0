"""A run keeps the pairs of subwords that its corpus has often enough, with exact sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import run_examples as examples

import normlens
from normlens.cli import main
from normlens.corpus import Run
from normlens.corpus.runs import kept_pairs
from normlens.corpus.runs.kept_pairs import load_kept_pairs
from normlens.corpus.runs.ledger import KEPT_PAIRS

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")

PAIRS = "amplification_pairs"
PAIR = ["before", "after", "layer", "source_id", "target_id"]
ALL = {"min_count": 1, "keep_pairs": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 14)


def run(model: Any, data: Path, out: Path, settings: dict[str, Any], **options: Any) -> Run:
    given = {"amplification": settings} if settings else None
    return normlens.run(model, data, out, measures="amplification", settings=given, **options)


def often(table: pd.DataFrame, least: int) -> pd.DataFrame:
    total = table.groupby(PAIR, observed=True)["count"].transform("sum")
    return table[total >= least].reset_index(drop=True)


def test_pairs_that_occur_twice_are_kept_and_exact(model: Path, data: Path, tmp_path: Path) -> None:
    everything = run(model, data, tmp_path / "all", ALL)
    assert everything.manifest.measures["amplification"]["options"]["least"] is None
    whole = everything.table(PAIRS)
    for name, settings, block_size in (
        ("twice", {}, 64),
        ("in blocks", {}, 3),
        ("bounded", {"keep_pairs": 30}, 5),
    ):
        kept = run(model, data, tmp_path / name, settings, block_size=block_size)
        least = kept.manifest.measures["amplification"]["options"]["least"]
        assert least == 2 if name != "bounded" else least > 2
        expected = often(whole, least)
        assert 0 < len(expected) < len(whole)
        examples.assert_same_frames(kept.table(PAIRS), expected, name, 0)
        for table in ("amplification_distance", "amplification_sample"):
            examples.assert_same_frames(kept.table(table), everything.table(table), table, 0)
        # A reader who knows only the manifest answers the same.
        again = Run.open(tmp_path / name)
        examples.assert_same_frames(again.table(PAIRS), expected, name, 0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What pairs were counted for, from now on."""
    calls: list[Any] = []
    count = kept_pairs._counted

    def watched(*given: Any) -> Any:
        calls.append(given)
        return count(*given)

    monkeypatch.setattr(kept_pairs, "_counted", watched)
    return calls


@pytest.fixture
def part(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped before its first block was done."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("normlens.corpus.runs.ledger.Ledger.commit", stop)
        with pytest.raises(KeyboardInterrupt):
            run(normlens.load(model), data, tmp_path / "part", {}, block_size=3)
    return tmp_path / "part"


def test_a_run_that_is_resumed_keeps_the_same_pairs(
    model: Path, data: Path, tmp_path: Path, part: Path, counted: list[Any]
) -> None:
    whole = run(model, data, tmp_path / "whole", {}, block_size=3)
    counted.clear()
    lens = normlens.load(model)
    elsewhere = part.rename(tmp_path / "elsewhere")
    done = normlens.resume(elsewhere, model=lens)
    assert counted == []  # the run remembers, wherever it is resumed
    examples.assert_same_tables(done, whole, 0)
    assert done.check().sound


@pytest.mark.parametrize("harm", ["lost", "cut short", "flipped", "of another run", "huge"])
def test_pairs_are_counted_again_where_the_run_has_lost_them(
    harm: str,
    model: Path,
    data: Path,
    tmp_path: Path,
    part: Path,
    counted: list[Any],
) -> None:
    whole = run(model, data, tmp_path / "whole", {}, block_size=3)
    other = run(model, data, tmp_path / "other", {"keep_pairs": 30}, block_size=3)
    counted.clear()
    file = part / KEPT_PAIRS
    before = file.read_bytes()
    if harm == "lost":
        file.unlink()
    elif harm == "cut short":
        file.write_bytes(before[:-1])
    elif harm == "flipped":
        examples.flip(file, len(before) // 2)
    elif harm == "of another run":
        file.write_bytes((tmp_path / "other" / KEPT_PAIRS).read_bytes())
    else:
        with np.load(file) as kept:
            np.savez(file, **{**kept, "often": np.zeros((2, 1 << 23), np.uint8)})
    done = normlens.resume(part, model=normlens.load(model))
    assert len(counted) == 1
    examples.assert_same_tables(done, whole, 0)
    assert load_kept_pairs(done.folder, done.manifest) is not None  # for who resumes it next
    assert len(done.table(PAIRS)) > len(other.table(PAIRS))


def test_runs_that_keep_all_pairs_have_no_such_file(
    model: Path, data: Path, tmp_path: Path
) -> None:
    run(model, data, tmp_path / "all", ALL)
    normlens.run(model, data, tmp_path / "norms", measures="norms")
    assert not (tmp_path / "all" / KEPT_PAIRS).exists()
    assert not (tmp_path / "norms" / KEPT_PAIRS).exists()


def test_options_of_the_command_line(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["run", "-m", str(model), "-d", str(data), "-o", str(out), "--limit", "4"]
    words += ["--measures", "amplification", "--set", "amplification.keep_pairs=null"]
    assert main([*words, "--set", "amplification.min_count=3"]) == 0
    options = Run.open(out).manifest.measures["amplification"]["options"]
    assert (options["min_count"], options["keep_pairs"], options["least"]) == (3, None, 3)
    assert main([*words[:-1], "amplification.min_count=0"]) == 2
    assert "at least 1" in capsys.readouterr().err
