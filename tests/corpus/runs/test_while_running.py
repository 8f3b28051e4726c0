"""What happens to a run's folder, and what is asked of it, while the run goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from run_records import forget, table_file

from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.progress import Progress
from normlens.errors import NormLensError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N = 12
OPTIONS: dict[str, Any] = {"block_size": 2, "measures": "mixing", "file_size": 0}


class Meddling(Progress):
    """Does something once, when so many sequences are done."""

    def __init__(self, do: Any, at: int):
        self.do, self.at, self.done = do, at, 0

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        if self.done == self.at:
            self.do()


def moved(out: Path) -> None:
    out.rename(out.with_name("elsewhere"))


def removed(path: Path) -> None:
    """Remove a folder, into which a worker may write meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def replaced(out: Path) -> None:
    moved(out)
    shutil.copytree(out.with_name("elsewhere"), out)


@pytest.mark.parametrize("at", [4, N], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("happens", [moved, removed, replaced], ids=lambda f: f.__name__)
def test_a_folder_that_vanishes_is_an_error(
    tmp_path: Path, place: Path, lens: Any, happens: Any, at: int
) -> None:
    out = tmp_path / "run"
    meddling = Meddling(lambda: happens(out), at)
    with pytest.raises(NormLensError, match="moved or removed while the run went on") as caught:
        run(lens, place / "corpus.txt", out, progress=meddling, **OPTIONS)
    assert "\n" not in str(caught.value)
    if happens is moved:
        done = resume(out.with_name("elsewhere"), model=lens)
        examples.assert_each_once(done)


@pytest.mark.parametrize("at", [4, N], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("lost", ["tables", "tables/mixing", "records", "claims", "manifest.json"])
def test_files_that_vanish_are_an_error(
    tmp_path: Path, place: Path, lens: Any, lost: str, at: int
) -> None:
    out = tmp_path / "run"
    path = out / lost
    meddling = Meddling(lambda: removed(path) if path.is_dir() else path.unlink(), at)
    # A worker that is about to write may be the first to notice.
    with pytest.raises(NormLensError, match=r"vanished|cannot write"):
        run(lens, place / "corpus.txt", out, progress=meddling, **OPTIONS)


def test_a_store_that_is_emptied_is_an_error(place: Path, lens: Any) -> None:
    import fsspec

    url = f"memory://emptied-{id(place)}/run"
    system, root = fsspec.core.url_to_fs(url)
    meddling = Meddling(lambda: system.rm(root, recursive=True), 4)
    with pytest.raises(NormLensError, match="vanished"):
        run(lens, place / "corpus.txt", url, progress=meddling, **OPTIONS)


def test_a_query_sees_one_state(
    tmp_path: Path, place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run(lens, place / "corpus.txt", out, **OPTIONS)
    forget(out, 4)
    tables = ("mixing", "sequences", "failures")
    hidden = {name: table_file(out, name, 4) for name in tables}
    for name, path in hidden.items():
        path.rename(tmp_path / name)
    real = LocalFolder.names

    def names(self: LocalFolder, under: str = "") -> list[str]:
        """The run writes its next table just after its records were listed."""
        found = real(self, under)
        if not hidden["mixing"].exists():
            shutil.copy(tmp_path / "mixing", hidden["mixing"])
        return found

    monkeypatch.setattr(LocalFolder, "names", names)
    query = 'SELECT count(DISTINCT m."index") AS n FROM mixing m'
    assert Run.open(out).sql(query)["n"].tolist() == [N - 2]
    hidden["mixing"].unlink()
    assert set(Run.open(out).table("mixing")["index"]) == set(range(N)) - {8, 9}


def test_queries_during_a_run_never_mix_states(tmp_path: Path, place: Path, lens: Any) -> None:
    out = tmp_path / "run"
    seen: list[tuple[int, int]] = []

    class Asking(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            query = """SELECT (SELECT count(*) FROM sequences) AS a,
                              (SELECT count(DISTINCT "index") FROM mixing) AS b"""
            [row] = Run.open(out).sql(query).itertuples(index=False)
            seen.append((int(row.a), int(row.b)))

    run(lens, place / "corpus.txt", out, progress=Asking(), **OPTIONS)
    assert seen == [(n, n) for n in range(2, N + 1, 2)]
