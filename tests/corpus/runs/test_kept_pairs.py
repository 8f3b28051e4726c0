"""A run keeps the pairs of subwords that its corpus has often enough, with exact sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import run_examples as examples

import normlens
from normlens.cli import main
from normlens.corpus import Run
from normlens.corpus.runs import first_pass

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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(model: Any, data: Path, out: Path, settings: dict[str, Any], **options: Any) -> Run:
    given = {"amplification": settings} if settings else None
    return normlens.run(model, data, out, measures="amplification", settings=given, **options)


def often(table: pd.DataFrame, least: int) -> pd.DataFrame:
    total = table.groupby(PAIR, observed=True)["count"].transform("sum")
    return table[total >= least].reset_index(drop=True)


def test_pairs_that_occur_twice_are_kept_and_exact(model: Path, data: Path, tmp_path: Path) -> None:
    everything = run(model, data, tmp_path / "all", ALL)
    assert "least" not in everything.manifest.measures["amplification"]["options"]
    whole = everything.table(PAIRS)
    for name, settings, shard_size in (
        ("twice", {}, 64),
        ("in shards", {}, 3),
        ("bounded", {"keep_pairs": 30}, 5),
    ):
        kept = run(model, data, tmp_path / name, settings, shard_size=shard_size)
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


def test_a_run_that_is_resumed_keeps_the_same_pairs(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    whole = run(model, data, tmp_path / "whole", {}, shard_size=3)
    lens = normlens.load(model)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    part = tmp_path / "part"
    with monkeypatch.context() as patched:
        patched.setattr("normlens.corpus.runs.log.Log.append", stop)
        with pytest.raises(KeyboardInterrupt):
            run(lens, data, part, {}, shard_size=3)
    counted = []
    kept_pairs = first_pass._counted

    def watched(*given: Any) -> Any:
        counted.append(given)
        return kept_pairs(*given)

    monkeypatch.setattr(first_pass, "_counted", watched)
    done = normlens.resume(part, model=lens)
    assert counted == []  # it was remembered
    examples.assert_same_tables(done, whole, 0)
    for path in cache.glob("pairs-*"):
        path.write_bytes(b"damaged")
    (Path(part) / "shards").rename(tmp_path / "gone")
    done = normlens.resume(part, model=lens)
    assert len(counted) == 1
    examples.assert_same_tables(done, whole, 0)


def test_a_run_from_before_goes_on_with_all_pairs(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest says nothing of a least count."""
    out = tmp_path / "old"
    with monkeypatch.context() as before:
        before.setattr("normlens.corpus.runs.runs.with_kept_pairs", lambda chosen, *_, **__: chosen)
        old = run(model, data, out, {}, shard_size=3)
    written = json.loads((out / "manifest.json").read_text())
    assert "min_count" not in written["measures"]["amplification"]["options"]
    table = old.table(PAIRS)
    assert (table.groupby(PAIR, observed=True)["count"].sum() == 1).any()
    examples.assert_same_frames(Run.open(out).table(PAIRS), table, PAIRS, 0)
    (out / "shards").rename(tmp_path / "gone")
    examples.assert_same_frames(normlens.resume(out).table(PAIRS), table, PAIRS, 0)


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
