"""A run's tables in SQL, and the commands run, status and query."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import run_examples as examples
import torch
import typer
from run_records import blocks_done, forget

from normlens import cli
from normlens.cli.corpus import SOME_FAILED
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import progress
from normlens.corpus.runs.status import _covered
from normlens.corpus.runs.tables import Tables
from normlens.errors import InputError, NormLensError, OutputError

duckdb = pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tables")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    return folder


def command(*arguments: Any) -> int:
    """The exit status of ``normlens arguments``; errors as exceptions."""
    made = typer.main.get_command(cli.app)
    status = made.main(args=[str(a) for a in arguments], standalone_mode=False)
    return status if isinstance(status, int) else 0


def start(folder: Path, out: Path, *more: Any) -> int:
    source = ("--model", folder / "model", "--data", folder / "corpus.txt", "--device", "cpu")
    return command("run", *source, "--out", out, *more)


@pytest.fixture(scope="module")
def done(folder: Path) -> Run:
    options = ("--block-size", 4, "--file-minutes", 0, "--quiet")
    assert start(folder, folder / "run", *options) == 0
    return Run.open(folder / "run")


# SQL ----------------------------------------------------------------------------------------------


def test_tables_are_in_their_own_order(done: Run) -> None:
    table = done.table("similarity")
    keys = ["index", "layer", "scope_a", "scope_b"]
    assert table[keys].equals(table[keys].sort_values(keys).reset_index(drop=True))
    assert table["index"].nunique() == N


def test_aggregates_are_merged_over_blocks(done: Run) -> None:
    parts = pq.read_table(Path(done.folder.url) / "tables" / "amplification_pairs").to_pandas()
    table = done.table("amplification_pairs")
    keys = ["before", "after", "layer", "relation", "source_id", "target_id"]
    assert not table.duplicated(keys).any()
    assert parts.duplicated(keys).any()
    assert table["count"].sum() == parts["count"].sum()
    assert table["sum_after"].sum() == pytest.approx(float(parts["sum_after"].sum()))


def by_pandas(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder)


def by_polars(folder: Path) -> pd.DataFrame:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return pd.DataFrame(polars.read_parquet(folder / "*.parquet").to_dict(as_series=False))


def by_duckdb(folder: Path) -> pd.DataFrame:
    return duckdb.sql(f"SELECT * FROM '{folder}/*.parquet'").df()


@pytest.mark.parametrize("read", [by_pandas, by_polars, by_duckdb])
def test_other_tools_read_a_finished_run_by_a_pattern(
    done: Run, read: Callable[[Path], pd.DataFrame]
) -> None:
    for name in ("sequences", "mixing", "similarity", "norms"):
        table = done.table(name)
        keys = [*done.manifest.tables[name]["order"], *table.columns]
        keys = list(dict.fromkeys(keys))
        rows = read(Path(done.folder.url) / "tables" / name)
        rows = rows[list(table.columns)].astype(table.dtypes.to_dict())
        ours, theirs = (f.sort_values(keys, ignore_index=True) for f in (table, rows))
        examples.assert_same_frames(theirs, ours, name, tolerance=0)


def test_queries_see_every_table(done: Run) -> None:
    for name in done.tables:
        [count] = done.sql(f"SELECT count(*) AS n FROM {name}")["n"]
        assert count == len(done.table(name)), name
    joined = done.sql(
        'SELECT s.sequence, avg(m.ratio) AS ratio FROM sequences s JOIN mixing m USING ("index") '
        "GROUP BY s.sequence, s.index ORDER BY s.index"
    )
    assert len(joined) == N


def test_a_query_goes_to_disk_beyond_its_memory(done: Run) -> None:
    small = Tables(done.folder, done.manifest, memory="60MB")
    rows = 3_000_000
    frame = small.sql(
        f"SELECT count(*) AS n FROM (SELECT hash(range) AS h FROM range({rows}) ORDER BY h) "
    )
    assert frame["n"].tolist() == [rows]


def test_a_slow_query_prints_nothing_but_its_answer(done: Run) -> None:
    shown = done.sql("SELECT current_setting('enable_progress_bar') AS shown")["shown"]
    assert not shown[0]


def test_variables_of_the_program_are_not_tables(done: Run) -> None:
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(InputError, match=r"frame.*the run's tables are: sequences"):
        done.sql("SELECT * FROM frame")
    assert len(frame)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM nothing", "the run's tables are"),
        ("SELEC 1", "syntax error"),
        ("SELECT wrong FROM mixing", "wrong"),
        ("", "no table"),
    ],
)
def test_wrong_queries_are_one_line(done: Run, query: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        done.sql(query)
    assert "\n" not in str(caught.value)


def test_unknown_tables_are_named(done: Run) -> None:
    with pytest.raises(InputError, match="unknown table 'nothing'; choose one of: sequences"):
        done.table("nothing")


def test_only_finished_blocks_count(done: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(done.folder.url, tmp_path / "run"))
    forget(copy, 1)
    half = Run.open(copy)
    assert set(half.table("sequences")["index"]) == {0, 1, 2, 3, 8, 9, 10}
    assert set(half.sql('SELECT DISTINCT "index" FROM mixing')["index"]) == {0, 1, 2, 3, 8, 9, 10}
    forget(copy, *blocks_done(half))
    with pytest.raises(InputError, match=r"no block .* is done yet"):
        half.table("sequences")


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet"])
def test_answers_become_files(done: Run, tmp_path: Path, suffix: str) -> None:
    query = 'SELECT "index", tokens FROM sequences ORDER BY "index";'
    path = done.export(query, tmp_path / f"answer{suffix}")
    read: Any = {
        ".csv": pd.read_csv,
        ".json": pd.read_json,
        ".jsonl": lambda p: pd.read_json(p, lines=True),
        ".parquet": pd.read_parquet,
    }[suffix]
    assert read(path)["tokens"].tolist() == done.table("sequences")["tokens"].tolist()
    with pytest.raises(OutputError, match="exists already"):
        done.export(query, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(InputError, match="unknown file type"):
        done.export(query, tmp_path / "answer.xlsx")


def test_no_text_of_a_csv_file_is_a_formula(
    done: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT '=1+1' AS a, -tokens AS b FROM sequences ORDER BY \"index\" -- of all"
    read = pd.read_csv(done.export(query, tmp_path / "answer.csv"))
    assert command("query", done.folder.url, query, "--csv") == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    for table in (read, printed):
        assert set(table["a"]) == {"'=1+1"}
        assert table["b"].tolist() == (-done.table("sequences")["tokens"]).tolist()


# Commands -----------------------------------------------------------------------------------------


def test_run_resume_and_status(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert start(folder, out, "--measures", "mixing", "--limit", 5) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("loading ")
    assert lines[-2].startswith("5/5 sequences, ")
    assert lines[-1] == f"5 sequences are done, none failed: {out}"
    assert command("run", "--resume", out, "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert command("status", out) == 0
    shown = capsys.readouterr().out
    for word in ("complete", "5 of 5 sequences", "left", "rate", "failures   0", "maps"):
        assert word in shown
    assert command("status", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["left"] == 0
    with pytest.raises(NormLensError, match=r"--mask: then none, now 0\.12"):
        command("run", "--resume", out, "--mask", 0.12)


def test_failures_are_counted_in_status_and_last_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ("--max-length", 12, "--no-truncate", "--measures", "mixing")
    assert start(folder, out, *options, "--quiet") == SOME_FAILED
    last = capsys.readouterr().err.splitlines()[-1]
    failures = len(Run.open(out).table("failures"))
    assert last.startswith(f"{failures} of {N} sequences failed; see: normlens query {out} ")
    assert command("run", "--resume", out) == SOME_FAILED


def test_query_prints_and_writes(
    done: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = 'SELECT "index", sequence, tokens FROM sequences ORDER BY 1'
    out = done.folder.url
    assert command("query", out) == 0
    assert "similarity(index, sequence, layer, scope_a, scope_b, rho)" in capsys.readouterr().out
    assert command("query", out, query) == 0
    assert "corpus.txt:3" in capsys.readouterr().out
    assert command("query", out, query, "--csv") == 0
    assert len(pd.read_csv(io.StringIO(capsys.readouterr().out))) == N
    assert command("query", out, query, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == N
    assert command("query", out, query, "--out", tmp_path / "answer.csv") == 0
    assert len(pd.read_csv(tmp_path / "answer.csv")) == N


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "--out for a new run or --resume"),
        (("run", "--out", "a", "--resume", "b"), "--out for a new run or --resume"),
        (("run", "--out", "a", "--model", "minilm"), "needs --data and --out"),
        (("status", "/nowhere"), "there is no run"),
        (("query", "/nowhere", "SELECT 1"), "there is no run"),
    ],
    ids=str,
)
def test_misuse_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(NormLensError, match=message):
        command(*arguments)


# Progress -----------------------------------------------------------------------------------------


def test_progress_suits_its_stream() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    bar = progress.for_stream(quiet=False, stream=stream)
    bar.start(10, 2)
    bar.advance(4, 1)
    bar.advance(4, 0)
    bar.stop()
    assert "10/10" in stream.getvalue()
    assert "1 failed" in stream.getvalue()
    quiet = progress.for_stream(quiet=True, stream=stream)
    assert type(quiet) is progress.Progress
    log = io.StringIO()
    lines = progress.Lines(log, every=0)
    lines.start(10, 2)
    lines.advance(4, 1)
    assert "6/10 sequences" in log.getvalue()
    assert "1 failed" in log.getvalue()
    assert "\x1b" not in log.getvalue()


def test_a_run_in_a_notebook_shows_a_bar_and_what_came_of_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = folder / "model", folder / "corpus.txt", tmp_path / "run"
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    done = run(*given, measures="mixing", block_size=2)
    out, err = capsys.readouterr()
    status = done.status()
    said = rf"{status.done} sequences, {status.failures} failed, in 0:\d\d:\d\d\n"
    assert re.fullmatch(said, out)
    assert "sequences: 100%" in err
    resume(done.folder.url)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    run(*given[:2], tmp_path / "again", measures="mixing")
    assert capsys.readouterr() == ("", "")


def test_breaks_do_not_count_as_time() -> None:
    assert _covered([(0, 2), (1, 3), (10, 11)]) == 4
    assert _covered([(0, 9), (1, 3)]) == 9
    assert _covered([]) == 0
