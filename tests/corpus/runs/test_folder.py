"""Stores behind URLs: what they raise is one line, and nothing is made that was not asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from run_records import table_file

import normlens
from normlens import cli
from normlens.corpus import Run, resume, run
from normlens.corpus.runs.folder import LocalFolder, open_folder
from normlens.corpus.runs.ledger import read_state
from normlens.errors import InputError, NormLensError, OutputError

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
from counting_store import CountingStore  # noqa: E402

N = 6


class NoCredentialsError(Exception):
    """What an S3 client raises, which is no OSError."""


class BucketStore(CountingStore):
    """An object store that may fail, and whose `makedirs` makes the bucket itself, as on S3."""

    protocol = "bucket"
    objects: dict[str, bytes] = {}  # noqa: RUF012
    buckets: set[str] = set()  # noqa: RUF012
    failing: dict[str, Exception] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("bucket://").strip("/")

    def _note(self, kind: str, path: str, times: int = 1) -> str:
        if kind in self.failing:
            raise self.failing[kind]
        key = super()._note(kind, path, times)
        if key.partition("/")[0] not in self.buckets:
            raise FileNotFoundError(f"no such bucket: {path}")
        return key

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.buckets.add(self._strip_protocol(path).partition("/")[0])

    def exists(self, path: str, **_: Any) -> bool:
        return self._strip_protocol(path) in {*self.buckets, *self.objects}


@pytest.fixture
def store() -> Iterator[type[BucketStore]]:
    fsspec.register_implementation("bucket", BucketStore, clobber=True)
    BucketStore.buckets.add("mine")
    yield BucketStore
    for kept in (BucketStore.objects, BucketStore.buckets, BucketStore.failing):
        kept.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("stores")
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    return folder


@pytest.fixture(scope="module")
def lens(folder: Path) -> Any:
    return normlens.load(folder / "model", device="cpu")


@pytest.fixture
def done(store: type[BucketStore], folder: Path, lens: Any) -> Run:
    return run(lens, folder / "corpus.txt", "bucket://mine/run", measures="mixing", block_size=2)


def test_a_run_in_a_bucket(done: Run, store: type[BucketStore]) -> None:
    assert done.status().complete
    assert len(done.table("sequences")) == N
    assert store.buckets == {"mine"}


def test_a_typo_makes_no_bucket(store: type[BucketStore], folder: Path, lens: Any) -> None:
    with pytest.raises(InputError, match="there is no bucket 'mime' for bucket://mime/run"):
        run(lens, folder / "corpus.txt", "bucket://mime/run", measures="mixing")
    with pytest.raises(InputError, match="there is no bucket 'mime'"):
        open_folder("bucket://mime").write("a", b"")
    with pytest.raises(NormLensError, match="there is no run"):
        Run.open("bucket://mime/run")
    assert store.buckets == {"mine"}
    assert not store.objects


ERRORS = [
    NoCredentialsError("Unable to locate credentials"),
    ConnectionRefusedError(111, "Connection refused"),
    PermissionError("Access Denied"),
    TimeoutError("timed out\nwhile waiting"),
    RuntimeError(""),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("operation", "kind"),
    [("list", InputError), ("get", InputError), ("put", OutputError)],
)
def test_what_a_store_raises_is_one_line(
    store: type[BucketStore], operation: str, kind: type[Exception], error: Exception
) -> None:
    store.failing[operation] = error
    place = open_folder("bucket://mine/run")
    calls: dict[str, Any] = {
        "list": place.names,
        "get": lambda: place.read("a"),
        "put": lambda: place.write("a", b""),
    }
    with pytest.raises(kind, match="bucket://mine/run") as raised:
        calls[operation]()
    assert "\n" not in str(raised.value)
    assert "may you use it?" in str(raised.value)


@pytest.mark.parametrize("operation", ["list", "get"])
def test_a_store_that_fails_under_a_query_is_one_line(
    done: Run, store: type[BucketStore], operation: str
) -> None:
    pytest.importorskip("duckdb", reason="queries need DuckDB")
    store.failing[operation] = NoCredentialsError("Unable to locate\ncredentials")
    with pytest.raises(InputError, match="Unable to locate") as raised:
        Run.open("bucket://mine/run").sql("SELECT * FROM sequences")
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_the_command_says_it_in_one_line(
    store: type[BucketStore], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.failing["list"] = NoCredentialsError("Unable to locate credentials")
    words = ["--model", str(folder / "model"), "--data", str(folder / "corpus.txt")]
    assert cli.main(["run", *words, "--out", "bucket://mine/run", "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot list bucket://mine/run: Unable to locate credentials")


def test_a_store_that_fails_does_not_cost_finished_blocks(
    done: Run, store: type[BucketStore], lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(store.objects)
    real = BucketStore.cat_file

    def failing(self: BucketStore, path: str, **options: Any) -> bytes:
        if "/records/" in path:
            raise ConnectionRefusedError(111, "Connection refused")
        return real(self, path, **options)

    monkeypatch.setattr(BucketStore, "cat_file", failing)
    with pytest.raises(InputError, match="Connection refused"):
        read_state(done.folder, done.manifest)
    with pytest.raises(InputError, match="Connection refused"):
        resume("bucket://mine/run", model=lens)
    assert set(store.objects) == before


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_is_created_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links on this disk")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    local = LocalFolder(tmp_path)
    assert local.create("claims/1.json", b"first")
    assert not local.create("claims/1.json", b"second")
    assert local.names() == ["claims/1.json"]
    assert local.read("claims/1.json") == b"first"


def test_a_damaged_table_is_one_line(tmp_path: Path, folder: Path, lens: Any) -> None:
    pytest.importorskip("duckdb", reason="queries need DuckDB")
    found = run(lens, folder / "corpus.txt", tmp_path / "run", measures="mixing")
    table_file(tmp_path / "run", "mixing").write_bytes(b"PAR1 no more")
    with pytest.raises(NormLensError) as raised:
        found.sql("SELECT * FROM mixing")
    assert "\n" not in str(raised.value)
    with pytest.raises(NormLensError):
        found.export("SELECT * FROM mixing", tmp_path / "answer.csv")
    assert not list(tmp_path.glob("*answer*"))
