"""Runs of encoder–decoders: pairs in every format, generated targets, and which measures fit."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pair_examples import fast_tokenizer, with_head
from run_examples import assert_each_once, assert_same_tables, some_fail, tiny_checkpoint

import normlens
from normlens.corpus import Run
from normlens.corpus.measures import measure
from normlens.corpus.runs.folder import RunError
from normlens.errors import InputError
from normlens.inputs import encode

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
    monkeypatch.setattr(encode, "MOST_GENERATED", 8)


def as_tsv(path: Path) -> dict[str, Any]:
    path.write_text("\n".join(["en\tfr", *("\t".join(pair) for pair in PAIRS)]))
    return {"column": "en", "pair_column": "fr"}


def as_csv(path: Path) -> dict[str, Any]:
    path.write_text("\n".join(["fr,id,en", *(f'"{fr}",7,"{en}"' for en, fr in PAIRS)]))
    return {"column": "en", "pair_column": "fr"}


def as_jsonl(path: Path) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"en": en, "fr": fr}) + "\n" for en, fr in PAIRS))
    return {"column": "en", "pair_column": "fr"}


def as_words(path: Path) -> dict[str, Any]:
    rows = [{"en": en.split(), "fr": fr.split()} for en, fr in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"column": "en", "pair_column": "fr"}


def as_list(path: Path) -> dict[str, Any]:
    path.write_text("".join(json.dumps({"text": pair}) + "\n" for pair in PAIRS))
    return {}


def as_objects(path: Path) -> dict[str, Any]:
    rows = [{"id": 3, "translation": {"fr": fr, "en": en}} for en, fr in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"column": "translation.en", "pair_column": "translation.fr"}


def as_parquet(path: Path) -> dict[str, Any]:
    rows = [{"id": 3, "translation": {"fr": fr.split(), "en": en.split()}} for en, fr in PAIRS]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return {"column": "translation.en", "pair_column": "translation.fr"}


FORMATS = {
    as_tsv: "pairs.tsv",
    as_csv: "pairs.csv",
    as_jsonl: "pairs.jsonl",
    as_words: "words.jsonl",
    as_list: "list.jsonl",
    as_objects: "objects.jsonl",
    as_parquet: "pairs.parquet",
}


def test_every_format_gives_the_same_tables(lens, lines, tmp_path: Path):
    recognised = normlens.run(lens, lines, tmp_path / "a", measures=MEASURES)
    named = normlens.run(lens, f"parallel:{lines}", tmp_path / "b", measures=MEASURES)
    assert_each_once(recognised)
    sequences = recognised.table("sequences")
    maps = lens.maps([tuple(map(str.split, pair)) for pair in PAIRS])
    assert sequences["tokens"].tolist() == [len(one.targets) for one in maps]
    assert sequences["source_tokens"].tolist() == [len(one.encoder.targets) for one in maps]
    assert sequences["generated"].isna().all()
    assert sequences["completeness"].max() < 1e-12
    assert_same_tables(recognised, named, tolerance=0)
    tables = "similarity", "mixing", "explanation_tokens"
    expected = {name: recognised.table(name).drop(columns="sequence") for name in tables}
    for write, name in FORMATS.items():
        options = write(tmp_path / name)
        out = tmp_path / f"of-{name}"
        chosen = "similarity,mixing,explanations"
        run = normlens.run(lens, tmp_path / name, out, measures=chosen, **options)
        for table in tables:
            assert run.table(table).drop(columns="sequence").equals(expected[table]), (name, table)


@pytest.mark.parametrize(
    ("row", "column", "reason"),
    [
        ({"translation": {"en": "the"}}, "translation.de", "'translation' has no field 'de'"),
        ({"translation": "the"}, "translation.en", "a text, which has no field 'en'"),
        ({"text": "the"}, "translation.en", "there is no column 'translation.en'"),
    ],
)
def test_columns_that_are_not_there_are_one_line(row, column, reason, lens, tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=reason) as error:
        normlens.run(lens, path, tmp_path / "run", measures=MEASURES, column=column)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_source_alone_is_translated_and_the_translation_recorded(lens, tmp_path: Path):
    path = tmp_path / "sources.txt"
    path.write_text("the house\ngreen ||| verte\n")
    run = normlens.run(lens, path, tmp_path / "run", measures="mixing")
    sequences = run.table("sequences")
    maps = lens.maps("the house")
    assert sequences["tokens"].tolist()[0] == len(maps.targets)
    assert sequences["generated"].dropna().to_dict() == {0: maps.text[1]}


@some_fail
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
    tokenizer = normlens.load(checkpoint).tokenizer
    counts = [len(tokenizer(*pair)["input_ids"]) for pair in PAIRS]
    assert run.table("sequences")["tokens"].tolist() == counts


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bart")
    with_head("bart").save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("forked_workers")
def test_processes_come_to_the_same_tables(checkpoint, lines, tmp_path: Path):
    alone = normlens.run(checkpoint, lines, tmp_path / "a", measures=MEASURES, block_size=1)
    several = normlens.run(checkpoint, lines, tmp_path / "b", measures=MEASURES, workers=2)
    assert_same_tables(alone, several)


#: Ends its process the first time that it sees the second pair.
FATAL = """
import os, pathlib
from normlens.corpus import Run
from normlens.corpus.measures import measure
from normlens.corpus.runs.folder import RunError

@measure(schema={"length": int})
def fatal(item):
    mark = pathlib.Path(__file__).with_name("died")
    if item.index == 1 and not mark.exists():
        mark.touch()
        os._exit(1)
    return {"length": [len(item)]}
"""


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_dies_costs_no_row(checkpoint, lines, tmp_path: Path, monkeypatch):
    (tmp_path / "fatal_pairs.py").write_text(FATAL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    options = {"measures": f"{MEASURES},fatal_pairs:fatal", "block_size": 1}
    out = tmp_path / "run"
    with suppress(RunError):
        normlens.run(checkpoint, lines, out, workers=2, **options)
    assert (tmp_path / "died").exists()
    resumed = normlens.resume(out, measures=options["measures"])
    assert_each_once(resumed)
    # Of the same machine and model, so bit for bit.
    whole = normlens.run(checkpoint, lines, tmp_path / "whole", **options)
    assert_same_tables(resumed, whole, tolerance=0)


def test_a_run_of_pairs_goes_on_with_its_own_tables(checkpoint, lines, tmp_path: Path):
    """What a measure writes depends on the model; a run resumed knows which one it was."""
    out = tmp_path / "run"
    normlens.run(checkpoint, lines, out, measures=MEASURES, block_size=1, file_size=0)
    before = Run.open(out)
    tables = {name: before.table(name) for name in before.tables}
    lost = [path for path in out.glob("**/*.parquet") if path.name.startswith("000001-")]
    assert len(lost) == len(tables)
    for path in lost:
        path.unlink()
    again = normlens.resume(out)
    assert again.manifest.tables["mixing"]["columns"]["stack"]
    for name, expected in tables.items():
        assert again.table(name).equals(expected), name
