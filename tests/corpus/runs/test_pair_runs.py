"""Runs of encoder–decoders: pairs in every format, generated targets, and which measures fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pair_examples import fast_tokenizer, with_head
from run_examples import assert_each_once, assert_same_tables, tiny_checkpoint

import normlens
from normlens import targets
from normlens.corpus.measures import measure
from normlens.errors import InputError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
MEASURES = "similarity,mixing,norms,amplification,explanations"
PAIRS = [
    ("the house is small", "la maison est petite"),
    ("don't stop .", "verte"),
    ("green", "la maison"),
]


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(with_head("bart").double(), fast_tokenizer())


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{source} ||| {target}\n" for source, target in PAIRS))
    return path


@pytest.fixture(autouse=True)
def _short_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST_GENERATED", 8)


def test_every_format_gives_the_same_tables(lens, lines, tmp_path: Path):
    table = tmp_path / "pairs.tsv"
    table.write_text("\n".join(["en\tfr", *("\t".join(pair) for pair in PAIRS)]))
    recognised = normlens.run(lens, lines, tmp_path / "a", measures=MEASURES)
    named = normlens.run(lens, f"parallel:{lines}", tmp_path / "b", measures=MEASURES)
    columns = normlens.run(
        lens, table, tmp_path / "c", measures=MEASURES, column="en", pair_column="fr"
    )
    assert_each_once(recognised)
    sequences = recognised.table("sequences")
    maps = lens.maps([tuple(map(str.split, pair)) for pair in PAIRS])
    assert sequences["tokens"].tolist() == [len(one.targets) for one in maps]
    assert sequences["source_tokens"].tolist() == [len(one.encoder.targets) for one in maps]
    assert sequences["generated"].isna().all()
    assert sequences["completeness"].max() < 1e-12
    assert_same_tables(recognised, named, tolerance=0)
    for name in ("mixing", "norms", "similarity", "explanations", "explanation_tokens"):
        found = columns.table(name).drop(columns="sequence")
        expected = recognised.table(name).drop(columns="sequence")
        assert found.equals(expected), name


def test_a_source_alone_is_translated_and_the_translation_recorded(lens, tmp_path: Path):
    path = tmp_path / "sources.txt"
    path.write_text("the house\ngreen ||| verte\n")
    run = normlens.run(lens, path, tmp_path / "run", measures="mixing")
    sequences = run.table("sequences")
    maps = lens.maps("the house")
    assert sequences["tokens"].tolist()[0] == len(maps.targets)
    assert sequences["generated"].dropna().to_dict() == {0: maps.text[1]}


def test_lines_that_are_no_pair_fail_alone(lens, tmp_path: Path):
    path = tmp_path / "pairs.txt"
    path.write_text("a ||| b ||| c\n ||| verte\nthe ||| la\n" + "green " * 60 + "||| verte\n")
    run = normlens.run(lens, path, tmp_path / "run", measures="mixing", truncate=False)
    reasons = run.table("failures").set_index("index")["reason"]
    assert sorted(reasons.index) == [0, 1, 3]
    assert "before it and its target behind it, once" in reasons[0]
    assert "the source has" in reasons[3]
    cut = normlens.run(lens, path, tmp_path / "cut", measures="mixing", max_length=6)
    assert cut.table("sequences")["source_tokens"].tolist() == [3, 6]


def test_measures_that_run_the_model_are_refused_unless_they_read_pairs(lens, lines, tmp_path):
    with pytest.raises(InputError, match="'faithfulness' is for models that read one") as error:
        normlens.run(lens, lines, tmp_path / "run", measures="faithfulness")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_masks_are_refused(lens, lines, tmp_path: Path):
    with pytest.raises(InputError, match="mask"):
        normlens.run(lens, lines, tmp_path / "run", measures="mixing", mask=0.1)


def test_a_users_measure_sees_both_sequences(lens, lines, tmp_path: Path):
    @measure(schema={"sources": int, "source": str})
    def both(item: Any) -> Any:
        return {"sources": len(item.maps.sources), "source": item.encoded.source.text}

    run = normlens.run(lens, lines, tmp_path / "run", measures=[both])
    assert run.table("both")["source"].tolist() == [source for source, _ in PAIRS]


def test_a_model_of_one_sequence_takes_parallel_text_as_pairs_of_texts(lines, tmp_path: Path):
    checkpoint = tiny_checkpoint(tmp_path / "model")
    run = normlens.run(checkpoint, f"parallel:{lines}", tmp_path / "run", measures="mixing")
    assert run.table("sequences")["source_tokens"].isna().all()
    lens = normlens.load(checkpoint)
    assert run.table("sequences")["tokens"].tolist() == [len(m.targets) for m in lens.maps(PAIRS)]


def test_processes_come_to_the_same_tables(lines, tmp_path: Path):
    folder = tmp_path / "model"
    with_head("bart").save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    alone = normlens.run(folder, lines, tmp_path / "a", measures=MEASURES, shard_size=1)
    several = normlens.run(folder, lines, tmp_path / "b", measures=MEASURES, workers=2)
    assert_same_tables(alone, several)
