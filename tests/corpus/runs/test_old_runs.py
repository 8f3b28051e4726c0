"""A run of a NormLens that kept no log opens, answers, and goes on with one.

`old_run` was written by that version: five sequences in three shards.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import NormLensError
from normlens.models.tiny import tiny_model

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
TEXTS = ["a b", "c d e", "f g", "a", "h b c"]
RECORD = "shards/shard-000001.json"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).with_name("old_run"), tmp_path / "old"))


@pytest.fixture(scope="module")
def lens() -> Any:
    torch.set_num_threads(1)
    model = tiny_model("bert", 0, pad_token_id=0)
    return normlens.load(model, examples.tiny_tokenizer(), device="cpu")


@pytest.fixture(scope="module")
def new(lens: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run by this version."""
    out = tmp_path_factory.mktemp("new") / "run"
    return run(lens, TEXTS, out, measures="similarity", shard_size=2)


def adopt(out: Path, new: Run) -> None:
    """Make the old run one of this machine's libraries and model, all of its digests included."""
    now = json.loads((Path(new.folder.url) / "manifest.json").read_text())
    parts = ("options", "model", "data", "tables", "measures", "versions")
    examples.forge(out, lambda found: found.update({part: now[part] for part in parts}))


def contents(out: Path) -> dict[str, bytes]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_it_opens_and_answers(old: Path, new: Run) -> None:
    before = contents(old)
    found = Run.open(old)
    status = found.status()
    assert status.complete
    assert (status.done, status.tokens, status.shards) == (5, 21, 3)
    assert status.stages["maps"] > 0
    assert found.check().sound
    examples.assert_each_once(found)
    examples.assert_same_tables(found, new)
    assert found.sql("SELECT count(*) AS n FROM similarity")["n"].item() == 5 * 2 * 28
    assert contents(old) == before


def test_a_finished_one_is_left_as_it_is(old: Path, new: Run, lens: Any) -> None:
    adopt(old, new)
    before = contents(old)
    assert resume(old, model=lens, data=TEXTS).status().complete
    assert contents(old) == before


def test_it_goes_on_with_a_log(old: Path, new: Run, lens: Any) -> None:
    adopt(old, new)
    kept = {path: path.read_bytes() for path in old.glob("shards/*/shard-00000[02].parquet")}
    (old / RECORD).unlink()
    assert Run.open(old).status().done == 3
    done = resume(old, model=lens, data=TEXTS)
    examples.assert_each_once(done)
    examples.assert_same_tables(done, new)
    assert done.check().sound
    # What was done stays; the records are in the log, and what nothing vouches for is gone.
    assert {path: path.read_bytes() for path in kept} == kept
    assert not list(old.glob("shards/*.json"))
    assert not list(old.glob("shards/*/shard-000001.parquet"))
    assert json.loads((old / "manifest.json").read_text())["version"] == 3
    assert Run.open(old).manifest.digest == done.manifest.digest
    # And it is resumed like any other.
    (old / "shards/similarity/shard-000000.parquet").unlink()
    again = resume(old, model=lens, data=TEXTS)
    examples.assert_same_tables(again, new)


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("at", range(4))
def test_stopped_while_it_gets_a_log(
    old: Path, new: Run, lens: Any, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt(old, new)
    (old / RECORD).unlink()
    left = [at]

    def stopping(real: Any) -> Any:
        def call(self: LocalFolder, *arguments: Any) -> None:
            if left[0] == 0:
                raise StoppedError
            left[0] -= 1
            real(self, *arguments)

        return call

    with monkeypatch.context() as patched:
        for method in ("write", "remove_all"):
            patched.setattr(LocalFolder, method, stopping(getattr(LocalFolder, method)))
        with pytest.raises(StoppedError):
            resume(old, model=lens, data=TEXTS)
    assert Run.open(old).status().done == 3
    examples.assert_same_tables(resume(old, model=lens, data=TEXTS), new)
    assert not list(old.glob("shards/*.json"))


def test_damage_is_computed_again(old: Path, new: Run, lens: Any) -> None:
    adopt(old, new)
    examples.flip(old / RECORD, 50)
    with pytest.raises(NormLensError, match=r"shard-000001\.json in .* is damaged"):
        Run.open(old).table("similarity")
    [problem] = Run.open(old).check().problems
    assert problem.file == RECORD
    table = old / "shards/similarity/shard-000002.parquet"
    examples.flip(table, 300)
    assert len(Run.open(old).check().problems) == 2
    done = resume(old, model=lens, data=TEXTS)
    examples.assert_same_tables(done, new)
    assert done.check().sound
