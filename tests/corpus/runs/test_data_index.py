"""The index of a run's data: one reading, resuming that seeks, and data that was changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from counted_reading import Counter

import normlens
from normlens.corpus import Record, Run, resume, run
from normlens.corpus.data import files as indexes
from normlens.corpus.data.records import Data
from normlens.corpus.runs import data_index
from normlens.corpus.runs import folder as folders
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import DATA_INDEX

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, BLOCK = 40, 4
LAST = N // BLOCK - 1
OPTIONS: dict[str, Any] = {
    "block_size": BLOCK,
    "measures": "mixing",
    "max_length": 8,
    "file_size": 0,
}


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    folder = examples.tiny_checkpoint(tmp_path_factory.mktemp("indexed") / "model")
    return normlens.load(folder, device="cpu")


def written(folder: Path) -> Path:
    """A file with long lines."""
    lines = examples.corpus_file(folder / "short.txt", N).read_text().splitlines()
    path = folder / "corpus.txt"
    path.write_text("".join(line + " " + "z" * 40_000 + "\n" for line in lines))  # 1.6 MB
    return path


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have a time that counts as old at once."""
    monkeypatch.setattr(folders, "NEW", 0.0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def whole(lens: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing disturbed, of data that nobody touches."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folders, "NEW", 0.0)
        return run(lens, written(folder), folder / "run", **OPTIONS)


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder.url, tmp_path / "copy"))


def lose(out: Path, block: int) -> None:
    """Remove the tables of a block, which is then computed again."""
    for path in out.glob(f"tables/*/{block:06d}-*.parquet"):
        path.unlink()


def test_a_run_reads_its_data_once(
    lens: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter(monkeypatch)
    done = run(lens, corpus, tmp_path / "run", **OPTIONS)
    # Opening it looks at the first lines.
    assert corpus.stat().st_size <= counter.bytes <= corpus.stat().st_size + 3 * (1 << 18)
    examples.assert_each_once(done)


def test_large_data_is_read_once_more_a_block_at_a_time(
    lens: Any, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Path(whole.manifest.options.data)
    monkeypatch.setattr(indexes, "KEPT", 300_000)  # seven lines, which is more than a block
    counter = Counter(monkeypatch)
    done = run(lens, corpus, tmp_path / "run", **OPTIONS)
    size = corpus.stat().st_size
    assert 1.5 * size < counter.bytes <= 2 * size + 3 * (1 << 18)
    examples.assert_same_tables(done, whole, tolerance=0)


@pytest.mark.parametrize("lost", [LAST, 0, 5])
def test_resuming_reads_the_blocks_that_are_left(
    lens: Any, whole: Run, copy: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    corpus = Path(whole.manifest.options.data)
    lose(copy, lost)
    counter = Counter(monkeypatch)
    done = resume(copy, model=lens)
    block = corpus.stat().st_size / (N / BLOCK)
    # A buffer for each look at the first lines, and one behind the block.
    assert counter.bytes <= block + 4 * (1 << 18)
    assert counter.bytes < corpus.stat().st_size
    examples.assert_same_tables(done, whole, tolerance=0)


def test_a_touched_file_is_compared_and_then_remembered(
    lens: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(lens, corpus, tmp_path / "run", **OPTIONS)
    size = corpus.stat().st_size
    for expected in (True, False):
        if expected:
            os.utime(corpus)
        lose(tmp_path / "run", LAST)
        with monkeypatch.context() as patched:
            counter = Counter(patched)
            done = resume(tmp_path / "run", model=lens)
        assert (counter.bytes > size) == expected
    examples.assert_same_tables(done, whole, tolerance=0)


def same_size(path: Path) -> None:
    """Change a letter, and give the file its old time back."""
    seen = path.stat()
    contents = bytearray(path.read_bytes())
    contents[0] ^= 1
    path.write_bytes(contents)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


CHANGES = {
    "another letter": same_size,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"a b\n"),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-40_000]),
    "copied back": lambda path: (shutil.copy2(path, f"{path}2"), os.replace(f"{path}2", path)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("has_index", [True, False])
def test_changed_data_is_refused(
    lens: Any, corpus: Path, tmp_path: Path, change: str, has_index: bool
) -> None:
    run(lens, corpus, tmp_path / "run", **OPTIONS)
    lose(tmp_path / "run", LAST)
    if not has_index:
        (tmp_path / "run" / DATA_INDEX).unlink()
    CHANGES[change](corpus)
    if change == "copied back":
        examples.assert_each_once(resume(tmp_path / "run", model=lens))
        return
    with pytest.raises(RunError, match=r"the contents of the data: then .*, now ") as caught:
        resume(tmp_path / "run", model=lens)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob(f"run/tables/*/{LAST:06d}-*"))


def test_a_change_that_no_stamp_shows_is_refused_by_the_records(
    lens: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(lens, corpus, tmp_path / "run", **OPTIONS)
    lose(tmp_path / "run", 0)
    stamp = data_index.local_stamp(os.stat(corpus))
    same_size(corpus)
    monkeypatch.setattr(data_index, "local_stamp", lambda seen: stamp)
    with pytest.raises(RunError, match=r"sequences 0 to 3 of 'corpus\.txt' are not what they were"):
        resume(tmp_path / "run", model=lens)


def edited(out: Path, edit: Any) -> None:
    """Edit an index as a stranger would, with a checksum that fits."""
    told = data_index.unsealed((out / DATA_INDEX).read_bytes())
    edit(told)
    (out / DATA_INDEX).write_bytes(data_index.sealed(told))


HARM: dict[str, Any] = {
    "lost": lambda out: (out / DATA_INDEX).unlink(),
    "cut short": lambda out: os.truncate(out / DATA_INDEX, 100),
    "flipped": lambda out: examples.flip(out / DATA_INDEX, 300),
    "empty": lambda out: (out / DATA_INDEX).write_bytes(b""),
    "a list": lambda out: (out / DATA_INDEX).write_bytes(b"[]"),
    "of another version": lambda out: edited(out, lambda told: told.update(version=99)),
    "of other data": lambda out: edited(out, lambda told: told.update(fingerprint="0" * 64)),
    "of other blocks": lambda out: edited(out, lambda told: told.update(size=7)),
    "too few marks": lambda out: edited(out, lambda told: told["checksums"].pop()),
    "another file": lambda out: edited(out, lambda told: told["marks"][0].__setitem__(-1, 7)),
    "before the file": lambda out: edited(out, lambda told: told["marks"][1].__setitem__(-1, -7)),
    "a text": lambda out: edited(out, lambda told: told.update(marks="x")),
    "huge": lambda out: edited(out, lambda told: told["marks"][1].__setitem__(-1, 1 << 70)),
}


@pytest.mark.parametrize("harm", HARM)
def test_without_an_index_the_data_is_read_through_again(
    lens: Any, whole: Run, copy: Path, harm: str
) -> None:
    """So it is, too, with runs that were begun before there were any."""
    before = (copy / DATA_INDEX).read_bytes()
    HARM[harm](copy)
    lose(copy, LAST)
    done = resume(copy, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert (copy / DATA_INDEX).read_bytes() == before
    assert done.check().sound


def test_marks_that_lead_astray_are_refused(lens: Any, copy: Path) -> None:
    lose(copy, LAST)
    edited(copy, lambda told: told["marks"][1].__setitem__(-1, 1))
    with pytest.raises(RunError, match="are not what they were when the run began"):
        resume(copy, model=lens)


def test_a_run_that_was_stopped_before_its_manifest_can_begin(
    lens: Any, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / DATA_INDEX).write_bytes(b"{}")
    examples.assert_each_once(run(lens, corpus, out, **OPTIONS))
    assert json.loads((out / DATA_INDEX).read_bytes())["sequences"] == N


class Ordered(Data):
    """Data that can only be read in order; it counts how often it is."""

    def __init__(self) -> None:
        super().__init__("ordered")
        self.readings = 0

    def _records(self) -> Any:
        self.readings += 1
        return (Record(f"mine:{n}", text=f"a b {'c ' * (n % 5)}") for n in range(N))

    def _fingerprint(self) -> str:
        return "mine"


def test_data_that_cannot_seek_is_read_in_order(
    lens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "KEPT", 0)
    data = Ordered()
    whole = run(lens, data, tmp_path / "run", **OPTIONS)
    assert data.readings == 2
    for block in (2, 5, LAST):
        lose(tmp_path / "run", block)
    data.readings = 0
    done = resume(tmp_path / "run", model=lens, data=data)
    assert data.readings == 2  # to compare it, and past what is done
    examples.assert_each_once(done)
    examples.assert_same_tables(done, Run.open(whole.folder.url), tolerance=0)
