"""The index of a run's data: one reading, resuming that seeks, and data that was changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_examples as examples
import torch
from counted_reading import Counter

import normlens
from normlens.corpus import Record, Run, open_data, resume, run
from normlens.corpus.data.records import Data
from normlens.corpus.runs.data_index import index_data
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import DATA_INDEX
from normlens.corpus.runs.progress import Progress

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


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def whole(lens: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing disturbed, of data that nobody touches."""
    folder = tmp_path_factory.mktemp("whole")
    return run(lens, written(folder), folder / "run", **OPTIONS)


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder.url, tmp_path / "copy"))


def lose(out: Path, block: int) -> None:
    """Remove the tables of a block, which is then computed again."""
    for path in out.glob(f"tables/*/{block:06d}-*.parquet"):
        path.unlink()


@pytest.mark.parametrize("lost", [LAST, 0, 5])
def test_resuming_reads_the_blocks_that_are_left(
    lens: Any, whole: Run, copy: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    corpus = Path(whole.manifest.options.data)
    lose(copy, lost)
    counter = Counter(monkeypatch)
    done = resume(copy, model=lens)
    size = corpus.stat().st_size
    # All of it for its checksum, the block, and buffers behind it and at each look at the top.
    assert size < counter.bytes <= size + size / (N / BLOCK) + 4 * (1 << 18) < 2 * size
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


def test_data_that_changes_while_a_run_goes_on_is_refused(
    lens: Any, corpus: Path, tmp_path: Path
) -> None:
    class Changing(Progress):
        def start(self, total: int, done: int) -> None:
            same_size(corpus)

    with pytest.raises(RunError, match=r"sequences 0 to 3 of 'corpus\.txt' are not what they were"):
        run(lens, corpus, tmp_path / "run", progress=Changing(), **OPTIONS)


def test_data_that_changes_while_it_is_read_is_refused(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(corpus)
    reading = data.reading

    def changing(*given: Any) -> Any:
        corpus.write_bytes(corpus.read_bytes() + b"a b\n")
        return reading(*given)

    monkeypatch.setattr(data, "reading", changing)
    with pytest.raises(RunError, match="was changed while it was read"):
        index_data(data, BLOCK)


def edited(out: Path, **changes: Any) -> None:
    """Write an index anew, with something else in it."""
    with np.load(out / DATA_INDEX) as file:
        fields = dict(file)
    np.savez(out / DATA_INDEX, **{**fields, **changes})


HARM: dict[str, Any] = {
    "lost": lambda out: (out / DATA_INDEX).unlink(),
    "cut short": lambda out: os.truncate(out / DATA_INDEX, 100),
    "flipped": lambda out: examples.flip(out / DATA_INDEX, 300),
    "empty": lambda out: (out / DATA_INDEX).write_bytes(b""),
    "of other data": lambda out: edited(out, fingerprint="0" * 64),
    "of other blocks": lambda out: edited(out, size=7),
    "too few marks": lambda out: edited(out, marks=np.zeros((3, 4), np.int64)),
    "before the file": lambda out: edited(out, marks=np.full((N // BLOCK, 4), -7)),
}


@pytest.mark.parametrize("harm", HARM)
def test_without_an_index_the_data_is_read_through_again(
    lens: Any, whole: Run, copy: Path, harm: str
) -> None:
    HARM[harm](copy)
    lose(copy, LAST)
    done = resume(copy, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)
    with np.load(copy / DATA_INDEX) as one, np.load(Path(whole.folder.url) / DATA_INDEX) as other:
        assert all(np.array_equal(one[name], other[name]) for name in other)
    assert done.check().sound


@pytest.mark.parametrize("place", [0, 1, 1 << 40])
def test_marks_that_lead_astray_are_refused(lens: Any, copy: Path, place: int) -> None:
    lose(copy, LAST)
    edited(copy, marks=np.full((N // BLOCK, 4), place))
    with pytest.raises(RunError, match="are not what they were when the run began"):
        resume(copy, model=lens)


def test_a_run_that_was_stopped_before_its_manifest_can_begin(
    lens: Any, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / DATA_INDEX).write_bytes(b"{}")
    examples.assert_each_once(run(lens, corpus, out, **OPTIONS))
    with np.load(out / DATA_INDEX) as file:
        assert file["sequences"] == N


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


def test_data_that_cannot_seek_is_read_in_order(lens: Any, tmp_path: Path) -> None:
    data = Ordered()
    whole = run(lens, data, tmp_path / "run", **OPTIONS)
    assert data.readings == 2
    for block in (2, 5, LAST):
        lose(tmp_path / "run", block)
    data.readings = 0
    done = resume(tmp_path / "run", model=lens, data=data)
    assert data.readings == 1  # past what is done
    examples.assert_each_once(done)
    examples.assert_same_tables(done, Run.open(whole.folder.url), tolerance=0)
