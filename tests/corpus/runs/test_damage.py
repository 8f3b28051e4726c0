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
from run_records import forget, record_file, table_file

from normlens import cli
from normlens.cli.corpus import NOT_SOUND
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import check as checks
from normlens.corpus.runs import folder
from normlens.errors import NormLensError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, BLOCK = 20, 3
OPTIONS: dict[str, Any] = {"block_size": BLOCK, "mask": 0.12, "file_size": 0}


@pytest.fixture(scope="module")
def whole(place: Path, lens: Any) -> Run:
    return run(lens, place / "corpus.txt", place / "run", **OPTIONS)


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder.url, tmp_path / "copy"))


@pytest.fixture
def file(copy: Path) -> str:
    """The name of a file of the table `mixing`."""
    return table_file(copy, "mixing", 2).relative_to(copy).as_posix()


def command(*arguments: Any) -> int:
    made = typer.main.get_command(cli.app)
    status = made.main(args=[str(a) for a in arguments], standalone_mode=False)
    return status if isinstance(status, int) else 0


def contents(out: Path) -> dict[str, bytes]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


# Tables -------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_no_number(copy: Path, file: str, tmp_path: Path, whole: Run) -> None:
    chance = random.Random(0)
    path = copy / file
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
                NormLensError, match=f"{file} in .*SHA-256.*normlens check"
            ) as error:
                ask()
            assert "\n" not in str(error.value)
        path.write_bytes(sound)
    # The others answer meanwhile.
    examples.flip(path, 100)
    examples.assert_same_frames(found.table("norms"), whole.table("norms"), "norms", 0)
    path.write_bytes(sound)
    examples.assert_same_tables(Run.open(copy), whole, tolerance=0)


@pytest.mark.parametrize("each", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_file_is_found_or_harmless(copy: Path, whole: Run, each: int) -> None:
    """Whatever kind of file it is: the tables are the same bits, or nothing answers."""
    chance, found = random.Random(1), 0
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        kinds.setdefault(path.relative_to(copy).parts[0], []).append(path)
    expected = examples.frames_of(whole)
    for number in range(each * len(kinds)):
        path = chance.choice(list(kinds.values())[number % len(kinds)])
        sound = path.read_bytes()
        if not sound:
            continue
        examples.flip(path, chance.randrange(len(sound)), chance.randrange(8))
        try:
            examples.assert_same_tables(Run.open(copy), expected, tolerance=0)
        except NormLensError as error:
            assert "\n" not in str(error)  # noqa: PT017
            found += 1
        path.write_bytes(sound)
    assert found >= each * 3  # of the manifest, records and tables each


def test_a_missing_file_is_one_line_and_breaks_no_other_table(
    copy: Path, file: str, whole: Run
) -> None:
    (copy / file).unlink()
    found = Run.open(copy)
    for ask in (lambda: found.table("mixing"), lambda: found.sql("FROM mixing")):
        with pytest.raises(NormLensError, match=f"{file} in .* is missing") as caught:
            ask()
        assert "\n" not in str(caught.value)
    examples.assert_same_frames(found.table("norms"), whole.table("norms"), "norms", 0)
    assert len(found.sql("FROM norms")) == len(whole.table("norms"))


def test_a_stray_file_changes_no_answer(copy: Path, file: str, whole: Run) -> None:
    shutil.copy(copy / file, copy / "tables/mixing/zzz.parquet")
    found = Run.open(copy)
    examples.assert_same_frames(found.table("mixing"), whole.table("mixing"), "mixing", 0)
    # Nor does it stand in for one that is missing.
    (copy / file).unlink()
    for ask in (lambda: found.table("mixing"), lambda: found.sql("FROM mixing")):
        with pytest.raises(NormLensError, match=f"{file} in .* is missing"):
            ask()


def test_stores_are_checked_too(lens: Any, place: Path, whole: Run) -> None:
    url = f"memory://damage-{id(place)}/run"
    done = run(lens, place / "corpus.txt", url, **OPTIONS)
    examples.assert_same_tables(done, whole)
    assert done.check().sound
    [file] = [name for name in done.folder.names() if "tables/mixing/000002-" in name]
    kept = done.folder.read(file)
    assert kept is not None
    done.folder.write(file, kept[:200] + bytes([kept[200] ^ 1]) + kept[201:])
    with pytest.raises(NormLensError, match="SHA-256"):
        done.table("mixing")
    [problem] = done.check().problems
    assert problem.file == file
    done.folder.remove([file])
    with pytest.raises(NormLensError, match="missing"):
        done.sql("SELECT * FROM mixing")


def test_each_file_is_verified_once(copy: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def sha256(self: folder.Folder, name: str) -> str | None:
        read.append(name)
        return real(self, name)

    real = folder.Folder.sha256
    monkeypatch.setattr(folder.Folder, "sha256", sha256)
    monkeypatch.setattr(folder, "NEW", -1.0)
    blocks = -(-N // BLOCK)
    Run.open(copy).sql("SELECT avg(ratio) FROM mixing")
    assert len(read) == blocks
    assert all(name.startswith("tables/mixing/") for name in read)
    Run.open(copy).table("mixing")
    checks._remembered.clear()  # as in another process
    Run.open(copy).table("mixing")
    assert len(read) == blocks
    (copy / file).touch()
    Run.open(copy).table("mixing")
    assert read[blocks:] == [file]
    # A file of another size need not be read.
    with (copy / file).open("ab") as opened:
        opened.write(b"more")
    with pytest.raises(NormLensError, match="bytes where its record says"):
        Run.open(copy).table("mixing")


def test_what_was_just_written_is_not_remembered(copy: Path, file: str) -> None:
    sound = (copy / file).read_bytes()
    (copy / file).write_bytes(sound)
    assert folder.local_stamp(os.stat(copy / file)).mark is None


# The command --------------------------------------------------------------------------------------


def mixing(out: Path) -> Path:
    return table_file(out, "mixing", 2)


HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "flipped": (lambda out: examples.flip(mixing(out), 77), "FILE: damaged"),
    "cut short": (lambda out: os.truncate(mixing(out), 77), "FILE: damaged: 77 bytes"),
    "missing": (lambda out: mixing(out).unlink(), "FILE: missing"),
    "stray table": (
        lambda out: shutil.copy(mixing(out), out / "tables/mixing/000077-1-a1.parquet"),
        "tables/mixing/000077-1-a1.parquet: stray",
    ),
    "stray file": (lambda out: (out / "notes.txt").touch(), "notes.txt: stray"),
    "half a file": (lambda out: (out / "tables/.x.tmp").touch(), "tables/.x.tmp: stray"),
    "record": (
        lambda out: examples.flip(record_file(out, 3), 50),
        "records/1-000003.json: missing or damaged",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_check_names_every_problem(
    copy: Path, file: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("check", copy) == 0
    assert capsys.readouterr().out.startswith("7 of 7 blocks are done, ")
    do, message = HARM[harm]
    do(copy)
    before = contents(copy)
    assert command("check", copy) == NOT_SOUND
    problem, summary = capsys.readouterr().out.splitlines()
    assert problem.startswith(message.replace("FILE", file))
    assert "1 problem" in summary
    assert command("check", copy, "--json") == NOT_SOUND
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert f"{found['problems'][0]['file']}: {found['problems'][0]['what']}" == problem
    assert contents(copy) == before


def test_check_reads_again_what_was_remembered(
    copy: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "local_stamp", lambda seen: folder.Stamp(seen.st_size, "same"))
    assert Run.open(copy).check().sound
    examples.flip(copy / file, 99)  # as a disk does, which changes no time
    assert not Run.open(copy).check().sound
    with pytest.raises(NormLensError, match="SHA-256"):
        Run.open(copy).table("mixing")


def test_what_a_run_is_writing_is_not_stray(copy: Path) -> None:
    forget(copy, 3)
    (copy / "tables/mixing/.000004-2-0.parquet.0.tmp").touch()
    found = Run.open(copy).check()
    assert found.sound
    assert (found.blocks_done, found.blocks) == (6, 7)


def test_an_answer_from_part_of_a_run_says_so(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT count(*) AS n FROM sequences"
    command("query", copy, query, "--csv")
    assert capsys.readouterr() == (f"n\n{N}\n", "")
    forget(copy, 3)
    command("query", copy, query, "--csv")
    shown = capsys.readouterr()
    assert shown.out == f"n\n{N - BLOCK}\n"
    assert shown.err.startswith("note: only blocks that are done answer")


# The manifest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("options", "seed", 1),
        ("options", "mask", 0.5),
        ("options", "max_length", 5),
        ("options", "block_size", 2),
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
    # Another manifest that is sound in itself is not the one that the blocks were computed under.
    rest = {k: v for k, v in manifest.items() if k not in ("format", "version", "digest")}
    manifest["digest"] = examples._sha256(rest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    for use in (lambda: Run.open(copy).table("mixing"), lambda: Run.open(copy).status()):
        with pytest.raises(NormLensError, match=r"belongs to another manifest\.json"):
            use()
    with pytest.raises(NormLensError):
        resume(copy, model=lens)
    assert contents(copy) | {"manifest.json": b""} == before | {"manifest.json": b""}


def test_sound_blocks_are_never_deleted(copy: Path, lens: Any, place: Path) -> None:
    # The lost manifest of a run is no reason to write over it.
    kept = (copy / "manifest.json").read_bytes()
    (copy / "manifest.json").unlink()
    (copy / "lock").unlink(missing_ok=True)
    before = contents(copy)
    with pytest.raises(NormLensError, match="holds other files"):
        run(lens, place / "corpus.txt", copy, **OPTIONS)
    assert contents(copy) == before
    # Nor is a run of fewer sequences, even where every digest says so.
    (copy / "manifest.json").write_bytes(kept)
    examples.forge(copy, lambda found: found["data"].update(sequences=9))
    before = contents(copy)
    with pytest.raises(NormLensError, match=r"number of sequences: then 9, now 20"):
        resume(copy, model=lens)
    # Its records hold more than that: those of other blocks do not count.
    problems = Run.open(copy).check().problems
    assert {problem.file.partition("/")[0] for problem in problems} == {"records", "tables"}
    assert contents(copy) == before


def test_a_users_own_files_survive_resuming(copy: Path, lens: Any) -> None:
    (copy / "tables/notes.txt").write_text("mine")
    forget(copy, 1)
    assert resume(copy, model=lens).status().complete
    assert (copy / "tables/notes.txt").read_text() == "mine"
