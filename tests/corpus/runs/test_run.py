"""Runs in one process: tables, options, failures, and what the tables do not depend on."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import run_examples as examples
import torch
from run_records import forget

import normlens
from normlens import cli
from normlens.corpus import Run, open_data, resume, run
from normlens.corpus.engines.block_rows import _checked
from normlens.corpus.measures import measure
from normlens.corpus.runs.folder import AllFailedError, RunError, SomeFailedWarning
from normlens.corpus.runs.options import parse_settings
from normlens.errors import InputError, NormLensError

N = 23


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Path:
    return examples.tiny_checkpoint(folder / "model")


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    return examples.corpus_file(folder / "corpus.txt", N)


@pytest.fixture(scope="module")
def lens(checkpoint: Path) -> Any:
    return normlens.load(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def plain(folder: Path, lens: Any, corpus: Path) -> Run:
    """A run that the others are compared with."""
    return run(lens, corpus, folder / "plain", block_size=5, mask=0.12)


def test_a_run_has_the_tables_of_all_measures(plain: Run) -> None:
    assert {"sequences", "failures", "similarity", "mixing", "norms"} <= set(plain.tables)
    examples.assert_each_once(plain)
    assert len(plain.table("failures")) == 0
    assert plain.status().complete
    for name in plain.tables:
        if name != "failures":
            assert len(plain.table(name)), name


def test_rows_are_those_of_the_lens_alone(plain: Run, lens: Any, corpus: Path) -> None:
    from normlens.corpus import encode_record, mask_tokens, measures

    table = plain.table("similarity")
    measure = measures.get("similarity")
    for index, record in enumerate(open_data(corpus, limit=3)):
        encoded = encode_record(record, lens.tokenizer, max_length=48)
        encoded = mask_tokens(encoded, lens.tokenizer, 0.12, seed=0)
        [maps] = lens.analyse([encoded])
        item = measures.Item(record.id, index, maps, encoded, 0)
        alone = measure.rows(item)["similarity"].to_pandas()
        alone = alone.sort_values(["layer", "scope_a", "scope_b"])
        own = table[table["index"] == index].reset_index(drop=True)
        examples.assert_same_frames(own, alone, "similarity")


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 1},
        {"block_size": 1000},
        {"block_size": 5, "batch_size": 4},
        {"block_size": 7, "batch_size": 3},
        {"block_size": 3, "file_size": 0},
        {"block_size": 2, "file_size": 0.02},
    ],
    ids=str,
)
def test_tables_do_not_depend_on_blocks_and_batches(
    plain: Run, lens: Any, corpus: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    examples.assert_same_tables(run(lens, corpus, tmp_path / "run", mask=0.12, **options), plain)


def test_the_manifest_says_how_to_repeat_the_run(
    folder: Path, checkpoint: Path, corpus: Path, tmp_path: Path, plain: Run
) -> None:
    found = json.loads((folder / "plain" / "manifest.json").read_text())
    assert found["model"]["weights"].startswith("sha256:")
    assert found["model"]["dtype"] == "float32"
    assert found["data"]["sequences"] == N
    assert found["versions"].keys() >= {"normlens", "torch", "transformers", "numpy"}
    assert found["machine"]["device"].startswith("cpu")
    options = {name: found["options"][name] for name in ("mask", "seed", "max_length")}
    again = run(checkpoint, corpus, tmp_path / "again", device="cpu", **options)
    examples.assert_same_tables(again, plain)


def test_masks_are_where_they_were_asked_for(plain: Run, lens: Any, corpus: Path) -> None:
    assert (plain.table("sequences")["masked"] > 0).all()
    unmasked = run(lens, corpus, f"memory://unmasked-{id(plain)}", limit=4, measures="mixing")
    assert (unmasked.table("sequences")["masked"] == 0).all()


def test_a_lens_stays_as_it_was(plain: Run, checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    """A run prepares a lens of its own; how the given one was prepared changes no bit."""
    lens = normlens.load(checkpoint, device="cpu")
    before = lens.maps(input_ids=[5, 6, 7])
    first = run(lens, corpus, tmp_path / "first", mask=0.12)
    np.testing.assert_array_equal(lens.maps(input_ids=[5, 6, 7])["FF"], before["FF"])
    assert lens._products is None
    second = run(lens.prepare(memory_limit=1), corpus, tmp_path / "second", mask=0.12)
    for done in (first, second):
        examples.assert_same_tables(done, plain, tolerance=0)


def test_a_model_without_a_tokenizer_is_refused_at_once(
    checkpoint: Path, corpus: Path, tmp_path: Path
) -> None:
    lens = normlens.load(checkpoint, tokenizer=False, device="cpu")
    with pytest.raises(InputError, match="has no tokenizer, which a run needs"):
        run(lens, corpus, tmp_path / "run")


def test_causal_models_are_not_masked(tmp_path: Path, corpus: Path) -> None:
    model = examples.tiny_checkpoint(tmp_path / "gpt2", model_type="gpt2")
    with pytest.raises(InputError, match=r"causal model.*leave --mask out"):
        run(model, corpus, tmp_path / "run", mask=0.12, device="cpu")
    done = run(model, corpus, tmp_path / "run", device="cpu", limit=3)
    assert done.status().done == 3


# Failures -----------------------------------------------------------------------------------------


@examples.some_fail
def test_sequences_that_are_too_long_fail_alone(tmp_path: Path, lens: Any, corpus: Path) -> None:
    done = run(lens, corpus, tmp_path / "run", max_length=12, truncate=False, block_size=4)
    failures = done.table("failures")
    assert 0 < len(failures) < N
    assert failures["reason"].str.contains("at most 12").all()
    assert not failures["reason"].str.contains("\n").any()
    examples.assert_each_once(done)
    assert done.status().failures == len(failures)
    inside = set(done.table("similarity")["index"])
    assert inside == set(done.table("sequences")["index"])


@examples.some_fail
@pytest.mark.parametrize("batch_size", [1, 8])
def test_sequences_that_are_not_finite_fail_alone(tmp_path: Path, batch_size: int) -> None:
    model = examples.tiny_checkpoint(tmp_path / "model", overflow="z")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ab cd\nabc z\nef gh\nab\nz b\ncd ef gh\n")
    done = run(model, corpus, tmp_path / "run", device="cpu", batch_size=batch_size)
    failures = done.table("failures")
    assert failures["index"].tolist() == [1, 4]
    assert failures["sequence"].tolist() == ["corpus.txt:1", "corpus.txt:4"]
    assert done.table("sequences")["index"].tolist() == [0, 2, 3, 5]
    assert set(done.table("mixing")["index"]) == {0, 2, 3, 5}


@examples.some_fail
def test_what_a_measure_cannot_measure_is_a_failure(
    tmp_path: Path, lens: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_measure.py").write_text(
        "from normlens.corpus.measures import measure\n"
        '@measure(schema={"layer": int, "largest": float})\n'
        "def largest(item):\n"
        "    if item.index % 5 == 2:\n"
        '        raise ZeroDivisionError("five goes\\nwrong")\n'
        '    found = item.maps["ATTN-N"].max(axis=(1, 2))\n'
        '    return {"layer": item.maps.layers, "largest": found}\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = run(lens, corpus, tmp_path / "run", measures="mixing,own_measure:largest", limit=10)
    failures = done.table("failures")
    assert failures["index"].tolist() == [2, 7]
    assert set(failures["reason"]) == {"largest: ZeroDivisionError: five goes wrong"}
    # A sequence is in every table or in none.
    assert set(done.table("mixing")["index"]) == set(done.table("largest")["index"])
    assert done.table("largest")["layer"].tolist() == [0, 1] * 8


#: What a measure may do that is no result: code of its body, and what the reason says of it.
NO_RESULT = {
    "exit": ("raise SystemExit(0)", r"odd: it ended with SystemExit \(0\) instead of a result"),
    "cancelled": ("raise asyncio.CancelledError", "odd: it ended with CancelledError"),
    "nan": ('return {"value": np.array([0.5, np.nan])}', "odd: the column 'value' .* holds NaN"),
    "nan in rows": ('return [{"value": float("nan")}]', "odd: the column 'value' .* holds NaN"),
    "nan in a frame": ('return pd.DataFrame({"value": [np.nan]})', "odd: .* holds NaN"),
}


@pytest.mark.parametrize("what", NO_RESULT)
def test_what_is_no_result_is_a_failure_and_no_number(
    tmp_path: Path, lens: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    body, reason = NO_RESULT[what]
    name = f"odd_{what.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import asyncio\nimport numpy as np\nimport pandas as pd\n"
        "from normlens.corpus.measures import measure\n"
        '@measure(schema={"value": float})\n'
        f"def odd(item):\n    if item.index == 3:\n        {body}\n"
        '    return {"value": [None, 1.0]}\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(SomeFailedWarning, match="1 of 6 sequences failed"):
        done = run(lens, corpus, tmp_path / "run", measures=f"mixing,{name}:odd", limit=6)
    failures = done.table("failures")
    assert failures["index"].tolist() == [3]
    assert failures["reason"].str.fullmatch(f"{reason}.*").all(), failures["reason"][0]
    examples.assert_each_once(done)
    assert set(done.table("mixing")["index"]) == {0, 1, 2, 4, 5}
    # None is a value that is missing, and no failure.
    assert done.sql("SELECT count(*) n FROM odd WHERE value IS NULL")["n"].tolist() == [5]


def test_nan_is_found_in_lists() -> None:
    of_lists = pa.schema([("index", pa.int64()), ("values", pa.list_(pa.list_(pa.float32())))])
    odd: Any = SimpleNamespace(name="odd", tables={"odd": of_lists})
    sound = pa.Table.from_pylist([{"index": 0, "values": [[1.0], [], [None]]}], schema=of_lists)
    assert _checked(odd, {"odd": sound}) == {"odd": sound}
    broken = pa.Table.from_pylist([{"index": 0, "values": [[], [math.nan]]}], schema=of_lists)
    with pytest.raises(InputError, match=r"'values' .* holds NaN"):
        _checked(odd, {"odd": broken})


def test_ctrl_c_while_a_measure_works_is_no_failure(
    tmp_path: Path, lens: Any, corpus: Path
) -> None:
    @measure(schema={"value": float})
    def interrupted(item: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lens, corpus, tmp_path / "run", measures=[interrupted], limit=2)
    assert Run.open(tmp_path / "run").status().done == 0


def test_a_run_whose_sequences_all_fail_is_an_error(
    tmp_path: Path, lens: Any, corpus: Path, capsys: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    options: dict[str, Any] = {"max_length": 2, "truncate": False, "limit": 4}
    message = r"4 of 4 sequences failed; see: .*; the first: max_length 2 leaves no room"
    with pytest.raises(AllFailedError, match=message) as caught:
        run(lens, corpus, tmp_path / "run", measures="mixing", **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(AllFailedError):
        resume(tmp_path / "run", model=lens)
    done = Run.open(tmp_path / "run")
    assert "failures   4 of 4" in str(done.status())
    assert repr(done).endswith("4 of 4 sequences done, 4 failed)")
    words = ["run", "--model", checkpoint, "--data", corpus, "--out", tmp_path / "typed"]
    words += ["--max-length", 2, "--no-truncate", "--limit", 4, "--measures", "mixing", "--quiet"]
    assert cli.main([str(word) for word in words]) == 3
    assert capsys.readouterr().err.startswith("error: 4 of 4 sequences failed")


def test_a_run_with_failures_warns_and_counts_them(
    tmp_path: Path, lens: Any, corpus: Path, plain: Run
) -> None:
    options: dict[str, Any] = {"max_length": 12, "truncate": False, "measures": "mixing"}
    with pytest.warns(SomeFailedWarning, match=rf"\d of {N} sequences failed; see: normlens query"):
        done = run(lens, corpus, tmp_path / "run", **options)
    failed = done.status().failures
    assert f"failures   {failed} of {N}\n" in str(done.status())
    assert repr(done).endswith(f"{N} of {N} sequences done, {failed} failed)")
    assert repr(plain).endswith(f"{N} of {N} sequences done, 0 failed)")


# Misuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": "similarity,nonsense"}, "nonsense"),
        ({"measures": "similarity,similarity"}, "twice"),
        ({"measures": ""}, "no measure"),
        ({"mask": 1.5}, "^mask is a share"),
        ({"limit": 0}, "limit"),
        ({"block_size": 0}, "^block_size must"),
        ({"max_length": 0}, "^max_length must"),
        ({"batch_size": "many"}, "^batch_size is"),
        ({"workers": 0}, "^workers must"),
        ({"sequence_timeout": -1}, "^sequence_timeout is"),
        ({"sequence_timeout": float("nan")}, "^sequence_timeout is"),
        ({"workers": 2}, "loaded lens"),
        ({"engine": "cloud"}, "engine"),
        ({"address": "auto"}, "--engine ray"),
        ({"speed": 3}, "speed"),
    ],
    ids=str,
)
def test_wrong_options_are_one_line_and_leave_nothing(
    tmp_path: Path, lens: Any, corpus: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(NormLensError, match=message) as caught:
        run(lens, corpus, tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_run_needs_a_folder_of_its_own(folder: Path, lens: Any, corpus: Path, plain: Run) -> None:
    with pytest.raises(NormLensError, match=r"holds a run already.*--resume"):
        run(lens, corpus, folder / "plain")
    with pytest.raises(NormLensError, match="holds other files"):
        run(lens, corpus, folder)
    with pytest.raises(NormLensError, match="there is no run"):
        Run.open(folder)
    with pytest.raises(NormLensError, match="there is no run"):
        resume(folder / "nowhere")


# Elsewhere ----------------------------------------------------------------------------------------


def test_a_run_may_live_behind_a_url(lens: Any, corpus: Path, plain: Run) -> None:
    url = f"memory://normlens-{id(plain)}/run"
    done = run(lens, corpus, url, block_size=6, mask=0.12, file_size=0)
    examples.assert_same_tables(done, plain)
    # Lose two blocks, one of them half.
    forget(url, 1)
    [name] = [name for name in done.folder.names() if "tables/mixing/000002-" in name]
    done.folder.write(name, b"PAR1")
    assert not done.check().sound
    again = resume(url, model=lens)
    examples.assert_same_tables(again, plain)
    assert Run.open(url).status().complete


def test_file_urls_are_local_folders(tmp_path: Path, lens: Any, corpus: Path) -> None:
    done = run(lens, corpus, f"file://{tmp_path}/run", limit=2, measures="mixing")
    assert (tmp_path / "run" / "lock").exists()
    assert done.status().done == 2


def test_measures_take_settings_and_a_users_own_relations(
    tmp_path: Path, lens: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_relations.py").write_text(
        "import numpy as np\n\ndef two_apart(item):\n"
        "    return np.abs(np.subtract.outer(range(len(item)), range(len(item)))) == 2\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = {
        "amplification": {
            "pairs": "ATTN-N:ATTNRES-N",
            "axis": "target",
            "relations": ["my_relations:two_apart"],
        }
    }
    out = tmp_path / "run"
    done = normlens.run(
        lens, corpus, out, measures="amplification", settings=settings, block_size=5, limit=12
    )
    found = done.table("amplification_distance")
    assert set(found["before"]) == {"ATTN-N"}
    assert set(found["after"]) == {"ATTNRES-N"}
    assert set(found.loc[found["relation"] == "two_apart", "distance"]) == {2}
    assert "two_apart" in set(found["relation"])
    assert 2 not in set(found.loc[found["relation"] == "other", "distance"])
    sampled = done.sql("SELECT DISTINCT relation, distance FROM amplification_sample")
    assert set(sampled.loc[sampled["distance"] == 2, "relation"]) == {"two_apart"}

    shutil.rmtree(out / "tables" / "amplification_pairs")
    with pytest.raises(NormLensError, match=r"only if you name it: add .*my_relations:two_apart"):
        normlens.resume(out, model=lens)
    again = normlens.resume(out, model=lens, settings=settings).table("amplification_distance")
    examples.assert_same_frames(again, found, "amplification_distance")
    changed = {"amplification": {"axis": "source"}}
    with pytest.raises(NormLensError, match="settings"):
        normlens.resume(out, model=lens, settings=changed)
    with pytest.raises(InputError, match="'norms', which is not among the measures"):
        normlens.run(lens, corpus, tmp_path / "no", measures="mixing", settings={"norms": {}})


def test_settings_on_the_command_line() -> None:
    given = ["amplification.axis=target", "amplification.keep=7", 'a.b=["x"]']
    assert parse_settings(given) == {
        "amplification": {"axis": "target", "keep": 7},
        "a": {"b": ["x"]},
    }
    with pytest.raises(InputError, match=r"MEASURE\.OPTION=VALUE"):
        parse_settings(["axis=target"])
    nested = "[" * 100_000
    assert parse_settings([f"norms.a={nested}"]) == {"norms": {"a": nested}}


def test_a_folder_without_a_model_does_not_hide_an_embedded_one(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    done = run("minilm", corpus, "minilm/run", measures="mixing", limit=1)
    assert done.manifest.options.model == "minilm"


def test_the_precision_belongs_to_the_run(tmp_path: Path, lens: Any, corpus: Path) -> None:
    done = run(lens, corpus, tmp_path / "run", measures="mixing", precision="tf32", limit=2)
    assert done.manifest.options.precision == "tf32"
    with pytest.raises(NormLensError, match="--precision"):
        resume(tmp_path / "run", model=lens, precision="bfloat16")
    with pytest.raises(InputError, match="unknown precision 'half'"):
        run(lens, corpus, tmp_path / "no", precision="half")


# What is nobody's fault, or a byte's ------------------------------------------------------------


@examples.some_fail
def test_a_byte_that_is_not_utf8_is_a_row_of_failures(tmp_path: Path, lens: Any) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"ab cd\nef\xe9 gh\nab\ncd ef\n")
    done = run(lens, path, tmp_path / "run", measures="mixing", block_size=2, file_size=0)
    examples.assert_each_once(done)
    failures = done.table("failures")
    assert failures["index"].tolist() == [1]
    assert failures["sequence"].tolist() == ["corpus.txt:1"]
    reason = "line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"
    assert failures["reason"].tolist() == [reason]
    forget(tmp_path / "run", 0)
    again = resume(tmp_path / "run", model=lens)
    assert again.table("failures").equals(failures)
    # The others are what they are without it.
    path.write_bytes(b"ab cd\nab\ncd ef\n")
    clean = run(lens, path, tmp_path / "clean", measures="mixing")
    assert again.table("mixing")["ratio"].tolist() == clean.table("mixing")["ratio"].tolist()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "ran out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ran out of memory"),
        (OSError(28, "No space left"), "No space left"),
    ],
)
def test_a_measure_that_the_machine_fails_is_one_line(
    tmp_path: Path, lens: Any, corpus: Path, error: Exception, reason: str
) -> None:
    broken = [True]

    @measure(schema={"length": int})
    def hungry(item: Any) -> Any:
        if item.index == 7 and broken:
            raise error
        return {"length": [len(item)]}

    with pytest.raises(RunError, match=f"'hungry' .*{reason}.* at corpus.txt:7") as caught:
        run(lens, corpus, tmp_path / "run", measures=[hungry], block_size=2)
    assert "\n" not in str(caught.value)
    broken.clear()
    done = resume(tmp_path / "run", model=lens, measures=[hungry])
    examples.assert_each_once(done)


def test_no_memory_for_tables_is_one_line(
    tmp_path: Path, lens: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("normlens.corpus.engines.block_rows.parquet", fail)
    with pytest.raises(RunError, match="not enough memory; what is done is kept"):
        run(lens, corpus, tmp_path / "run", measures="mixing")
