"""A damaged run does not answer, says what is wrong with it, and loses nothing that is sound."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import typer
from run_records import edit_entry, entries_file, forget

from normlens import cli
from normlens.cli.corpus import NOT_SOUND
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import folder, stamps, verified
from normlens.errors import NormLensError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, SHARD = 20, 3
FILE = "shards/mixing/shard-000002.1-1.parquet"


@pytest.fixture(scope="module")
def whole(place: Path, lens: Any) -> Run:
    return run(lens, place / "corpus.txt", place / "run", shard_size=SHARD, mask=0.12)


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder.url, tmp_path / "copy"))


def command(*arguments: Any) -> int:
    made = typer.main.get_command(cli.app)
    status = made.main(args=[str(a) for a in arguments], standalone_mode=False)
    return status if isinstance(status, int) else 0


def contents(out: Path) -> dict[str, bytes]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


# Tables -------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_no_number(copy: Path, tmp_path: Path, whole: Run) -> None:
    chance = random.Random(0)
    path = copy / FILE
    sound, seen = path.read_bytes(), path.stat()
    assert len(Run.open(copy).table("mixing"))
    found = Run.open(copy)
    questions: list[Callable[[], Any]] = [
        lambda: found.table("mixing"),
        lambda: found.sql("SELECT avg(ratio) FROM mixing"),
        lambda: found.sql("SELECT avg(ratio) FROM query_table('mixing')"),
        lambda: found.export("FROM mixing", tmp_path / "answer.csv"),
    ]
    for _ in range(10):
        examples.flip(path, chance.randrange(len(sound)), chance.randrange(8))
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        for ask in questions:
            with pytest.raises(
                NormLensError, match=f"{FILE} in .*SHA-256.*normlens check"
            ) as error:
                ask()
            assert "\n" not in str(error.value)
        path.write_bytes(sound)
    # The others answer meanwhile.
    examples.flip(path, 100)
    examples.assert_same_frames(found.table("norms"), whole.table("norms"), "norms", 0)
    path.write_bytes(sound)
    examples.assert_same_tables(Run.open(copy), whole, tolerance=0)


def test_a_missing_file_is_one_line_and_breaks_no_other_table(copy: Path, whole: Run) -> None:
    (copy / FILE).unlink()
    found = Run.open(copy)
    for ask in (lambda: found.table("mixing"), lambda: found.sql("FROM mixing")):
        with pytest.raises(NormLensError, match=f"{FILE} in .* is missing") as caught:
            ask()
        assert "\n" not in str(caught.value)
    examples.assert_same_frames(found.table("norms"), whole.table("norms"), "norms", 0)
    assert len(found.sql("FROM norms")) == len(whole.table("norms"))


def test_a_stray_file_changes_no_answer(copy: Path, whole: Run) -> None:
    shutil.copy(copy / FILE, copy / "shards/mixing/zzz.parquet")
    found = Run.open(copy)
    examples.assert_same_frames(found.table("mixing"), whole.table("mixing"), "mixing", 0)
    # Nor does it stand in for one that is missing.
    (copy / FILE).unlink()
    for ask in (lambda: found.table("mixing"), lambda: found.sql("FROM mixing")):
        with pytest.raises(NormLensError, match=f"{FILE} in .* is missing"):
            ask()


def test_a_damaged_record_is_refused(copy: Path, lens: Any, whole: Run) -> None:
    edit_entry(copy, 1, lambda line: line.replace('"sequences": 3', '"sequences": 9'))
    with pytest.raises(NormLensError, match=r"\.jsonl in .* is damaged: line 2"):
        Run.open(copy).table("mixing")
    examples.assert_same_tables(resume(copy, model=lens), whole, tolerance=0)


def test_stores_are_checked_too(lens: Any, place: Path, whole: Run) -> None:
    url = f"memory://damage-{id(place)}/run"
    done = run(lens, place / "corpus.txt", url, shard_size=SHARD, mask=0.12)
    examples.assert_same_tables(done, whole)
    assert done.check().sound
    kept = done.folder.read(FILE)
    assert kept is not None
    done.folder.write(FILE, kept[:200] + bytes([kept[200] ^ 1]) + kept[201:])
    with pytest.raises(NormLensError, match="SHA-256"):
        done.table("mixing")
    [problem] = done.check().problems
    assert problem.file == FILE
    done.folder.remove(FILE)
    with pytest.raises(NormLensError, match="missing"):
        done.sql("SELECT * FROM mixing")


def test_each_file_is_verified_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def sha256(self: folder.Folder, name: str) -> str | None:
        read.append(name)
        return real(self, name)

    real = folder.Folder.sha256
    monkeypatch.setattr(folder.Folder, "sha256", sha256)
    monkeypatch.setattr(stamps, "NEW", -1.0)
    shards = -(-N // SHARD)
    Run.open(copy).sql("SELECT avg(ratio) FROM mixing")
    assert len(read) == shards
    assert all(name.startswith("shards/mixing/") for name in read)
    Run.open(copy).table("mixing")
    verified._remembered.clear()  # as in another process
    Run.open(copy).table("mixing")
    assert len(read) == shards
    (copy / FILE).touch()
    Run.open(copy).table("mixing")
    assert read[shards:] == [FILE]
    # A file of another size need not be read.
    with (copy / FILE).open("ab") as file:
        file.write(b"more")
    with pytest.raises(NormLensError, match="bytes where its record says"):
        Run.open(copy).table("mixing")


def test_what_was_just_written_is_not_remembered(copy: Path) -> None:
    sound = (copy / FILE).read_bytes()
    (copy / FILE).write_bytes(sound)
    assert stamps.local_stamp(os.stat(copy / FILE)).mark is None


# The command --------------------------------------------------------------------------------------

HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "flipped": (lambda out: examples.flip(out / FILE, 77), f"{FILE}: damaged"),
    "cut short": (lambda out: os.truncate(out / FILE, 77), f"{FILE}: damaged: 77 bytes"),
    "missing": (lambda out: (out / FILE).unlink(), f"{FILE}: missing"),
    "stray table": (
        lambda out: shutil.copy(out / FILE, out / "shards/mixing/shard-000077.1-1.parquet"),
        "shards/mixing/shard-000077.1-1.parquet: stray",
    ),
    "stray file": (lambda out: (out / "notes.txt").touch(), "notes.txt: stray"),
    "half a file": (lambda out: (out / "shards/.x.tmp").touch(), "shards/.x.tmp: stray"),
    "record": (
        lambda out: examples.flip(entries_file(out), 50),
        "log/000001.TOKEN.00000000.jsonl: damaged",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_check_names_every_problem(
    copy: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("check", copy) == 0
    assert capsys.readouterr().out.startswith("7 of 7 shards are done, ")
    do, message = HARM[harm]
    do(copy)
    before = contents(copy)
    assert command("check", copy) == NOT_SOUND
    problem, summary = capsys.readouterr().out.splitlines()
    assert problem.startswith(message.replace("TOKEN", entries_file(copy).name.split(".")[1]))
    assert "1 problem" in summary
    assert command("check", copy, "--json") == NOT_SOUND
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert f"{found['problems'][0]['file']}: {found['problems'][0]['what']}" == problem
    assert contents(copy) == before


def test_check_reads_again_what_was_remembered(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "local_stamp", lambda seen: stamps.Stamp(seen.st_size, "same"))
    monkeypatch.setattr(folder, "local_stamp", stamps.local_stamp)
    assert Run.open(copy).check().sound
    examples.flip(copy / FILE, 99)  # as a disk does, which changes no time
    assert not Run.open(copy).check().sound
    with pytest.raises(NormLensError, match="SHA-256"):
        Run.open(copy).table("mixing")


def test_what_a_run_is_writing_is_not_stray(copy: Path) -> None:
    forget(copy, 3)
    (copy / "shards/mixing/.shard-000004.parquet.0.tmp").touch()
    found = Run.open(copy).check()
    assert found.sound
    assert (found.shards_done, found.shards) == (6, 7)


def test_an_answer_from_part_of_a_run_says_so(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT count(*) AS n FROM sequences"
    command("query", copy, query, "--csv")
    assert capsys.readouterr() == (f"n\n{N}\n", "")
    forget(copy, 3)
    command("query", copy, query, "--csv")
    shown = capsys.readouterr()
    assert shown.out == f"n\n{N - SHARD}\n"
    assert shown.err.startswith("note: only shards that are done answer")


# The manifest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("options", "seed", 1),
        ("options", "mask", 0.5),
        ("options", "max_length", 5),
        ("options", "shard_size", 2),
        ("data", "sequences", 9),
    ],
)
def test_an_edited_manifest_is_refused(
    copy: Path, lens: Any, part: str, field: str, value: Any
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest[part][field] = value
    (copy / "manifest.json").write_text(json.dumps(manifest, indent=1))
    before = contents(copy)
    for use in (lambda: resume(copy, model=lens), lambda: Run.open(copy).table("mixing")):
        with pytest.raises(NormLensError, match="edited or is damaged"):
            use()
    # Another manifest that is sound in itself is not the one that the shards were computed under.
    rest = {k: v for k, v in manifest.items() if k not in ("format", "version", "digest")}
    manifest["digest"] = examples._sha256(rest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    for use in (lambda: Run.open(copy).table("mixing"), lambda: Run.open(copy).status()):
        with pytest.raises(NormLensError, match=r"belongs to another manifest\.json"):
            use()
    with pytest.raises(NormLensError):
        resume(copy, model=lens)
    assert contents(copy) | {"manifest.json": b""} == before | {"manifest.json": b""}


def test_sound_shards_are_never_deleted(copy: Path, lens: Any, place: Path) -> None:
    # The lost manifest of a run is no reason to write over it.
    kept = (copy / "manifest.json").read_bytes()
    (copy / "manifest.json").unlink()
    (copy / "lock").unlink(missing_ok=True)
    before = contents(copy)
    with pytest.raises(NormLensError, match="holds other files"):
        run(lens, place / "corpus.txt", copy, shard_size=SHARD, mask=0.12)
    assert contents(copy) == before
    # Nor is a run of fewer sequences, even where every digest says so.
    (copy / "manifest.json").write_bytes(kept)
    examples.forge(copy, lambda found: found["data"].update(sequences=9))
    before = contents(copy)
    with pytest.raises(NormLensError, match=r"number of sequences: then 9, now 20"):
        resume(copy, model=lens)
    from normlens.corpus.runs.recovery import recover

    found = Run.open(copy)
    with pytest.raises(NormLensError, match="is sound but not of this run"):
        recover(found.folder, found.manifest)
    assert contents(copy) == before


def test_a_users_own_files_survive_resuming(copy: Path, lens: Any) -> None:
    (copy / "shards/notes.txt").write_text("mine")
    forget(copy, 1)
    assert resume(copy, model=lens).status().complete
    assert (copy / "shards/notes.txt").read_text() == "mine"
