"""The ledger of a run: who works on it, and which files hold the tables of which blocks.

    manifest.json                  what the run is; created once, before anything else
    claims/<epoch>.json            a driver; created exclusively, so every epoch has one
    claims/<epoch>.base.json       the records of earlier epochs that this driver goes on from
    records/<epoch>-<number>.json  some blocks, and one file per table with their rows
    tables/<table>/….parquet       such a file; without a record it is not there

A driver claims the run, then reads it, then works. Before each record it looks for a newer claim,
and stops if there is one. A reader takes the newest claim with a base, the records that the base
lists, and those of that epoch: what a driver writes after it was replaced counts for nobody. No
file is written twice. Files without a record are removed at the end, by the owner of the newest
claim.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from normlens.corpus.data.records import Record
from normlens.corpus.runs.folder import (
    TEMPORARY,
    Folder,
    LocalFolder,
    RunError,
    Stamp,
    another_manifest,
)
from normlens.corpus.runs.manifest import Manifest
from normlens.errors import OutputError, parse_json, system_reason

CLAIMS, RECORDS, TABLES = "claims", "records", "tables"
#: Files that hold nothing of the results: the run can be read without them. The lock is held by
#: the process that works here, and that writes the heartbeat.
LOCK, DATA_INDEX, KEPT_PAIRS = "lock", "data-index.npz", "kept-pairs.npz"
HEARTBEAT = "heartbeat.json"
SIDE_FILES = (LOCK, DATA_INDEX, KEPT_PAIRS, HEARTBEAT)
_CLAIM = re.compile(r"claims/(\d+)\.json")
_BASE = re.compile(r"claims/(\d+)\.base\.json")
_RECORD = re.compile(r"records/(\d+)-(\d+)\.json")
_TABLE = re.compile(r"tables/(\w+)/(\d+)-(\d+)-[0-9a-f]+\.parquet")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# What is handed out, and what comes back.


@dataclass(frozen=True)
class Block:
    """Work to do: consecutive records and the running number of the first."""

    number: int
    first: int
    records: tuple[Record, ...]
    seconds: float = 0.0  # reading them
    epoch: int = 1  # of the driver that hands it out


class File(NamedTuple):
    """A file that a record vouches for."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class FileSet:
    """A set of files, one per table, that a worker has written, and the blocks that they hold."""

    epoch: int  # of the driver that handed the blocks out
    blocks: tuple[int, ...]  # their numbers, in order
    sequences: int  # analysed
    failures: int
    tokens: int
    started: float
    finished: float
    seconds: dict[str, float]  # stage → time
    tables: dict[str, File]
    by: dict[str, Any] = field(default_factory=dict)  # host, device, versions, digest of the model
    deaths: dict[int, int] = field(default_factory=dict)  # block → workers that died with it


class Unwritten(NamedTuple):
    """A block that a worker has computed and not written yet, or that was `lost` with it."""

    block: int
    lost: bool = False


def table_file(table: str, first: int, epoch: int) -> str:
    """A new name for a file of a table, which no other worker and no other driver gives."""
    return f"{TABLES}/{table}/{first:06d}-{epoch}-{uuid.uuid4().hex[:12]}.parquet"


def record_name(epoch: int, number: int) -> str:
    return f"{RECORDS}/{epoch}-{number:06d}.json"


def claim_name(epoch: int) -> str:
    return f"{CLAIMS}/{epoch}.json"


def base_name(epoch: int) -> str:
    return f"{CLAIMS}/{epoch}.base.json"


# JSON that vouches for itself.


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Write a JSON object as a line that ends with its checksum."""
    return json.dumps({**fields, "sha256": _checksum(fields)}).encode() + b"\n"


def unsealed(line: bytes) -> dict[str, Any]:
    """Read a line of `sealed`, or raise a ValueError."""
    fields = parse_json(line)
    if not isinstance(fields, dict) or fields.pop("sha256", None) != _checksum(fields):
        raise ValueError("it does not match its checksum")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in order as [first, last] of those that follow each other."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _record_bytes(written: FileSet, manifest: str) -> bytes:
    fields = asdict(written) | {"manifest": manifest, "blocks": _ranges(written.blocks)}
    fields["deaths"] = {str(number): count for number, count in written.deaths.items()}
    return sealed(fields)


def _parsed(contents: bytes, name: str, manifest: Manifest) -> FileSet:
    """Read a record, or raise a ValueError; one of another manifest is a LookupError."""
    fields = unsealed(contents)
    try:
        if fields.pop("manifest") != manifest.digest:
            raise LookupError(name)
        ranges, files = fields.pop("blocks"), fields.pop("tables")
        _check_ranges(ranges, manifest.blocks)
        record = FileSet(
            **{
                **fields,
                "blocks": tuple(n for first, last in ranges for n in range(first, last + 1)),
                "tables": {table: File(*files[table]) for table in manifest.tables},
                "deaths": {int(number): int(count) for number, count in fields["deaths"].items()},
            }
        )
        times = (record.started, record.finished, *record.seconds.values())
        sound = name.startswith(f"{RECORDS}/{record.epoch}-")
        sound = sound and all(isinstance(each, (int, float)) for each in times)
        counts = [record.sequences, record.failures, record.tokens]
        for table, file in record.tables.items():
            place = _TABLE.fullmatch(file.name)
            sound = sound and place is not None and place[1] == table
            sound = sound and _SHA256.fullmatch(file.sha256) is not None
            counts += [file.rows, file.bytes]
        sound = sound and all(type(count) is int and count >= 0 for count in counts)
        size = sum(map(manifest.size, record.blocks))
        if not sound or size != record.sequences + record.failures:
            raise ValueError("it is no record of this run")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it is no record ({error})") from error
    return record


def _check_ranges(ranges: Sequence[Sequence[int]], blocks: int) -> None:
    last = -1
    for begin, end in ranges:
        if not (type(begin) is int and type(end) is int and last < begin <= end < blocks):
            raise ValueError("its blocks are not those of this run")
        last = end


# Reading.


@dataclass(frozen=True)
class State:
    """The records of a run that count at one moment."""

    epoch: int  # of the driver that they are of; 0 if there was none yet
    records: dict[str, FileSet] = field(default_factory=dict)  # by name
    deaths: Mapping[int, int] = field(default_factory=dict)  # block → workers that died with it
    damaged: tuple[str, ...] = ()  # files of the ledger that are missing or damaged

    def done(self, blocks: int) -> bytearray:
        """For each of so many blocks, whether it is done."""
        done = bytearray(blocks)
        for record in self.records.values():
            for number in record.blocks:
                done[number] = 1
        return done

    @property
    def blocks_done(self) -> int:
        return sum(len(record.blocks) for record in self.records.values())

    @property
    def sequences(self) -> int:
        """Sequences of these blocks that were analysed."""
        return sum(record.sequences for record in self.records.values())

    @property
    def failures(self) -> int:
        """Sequences of these blocks that could not be analysed."""
        return sum(record.failures for record in self.records.values())

    @property
    def tokens(self) -> int:
        return sum(record.tokens for record in self.records.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Time per stage, summed over workers."""
        total: Counter[str] = Counter()
        for record in self.records.values():
            total.update(record.seconds)
        return dict(total)

    def files(self, table: str) -> list[File]:
        """List the files that hold a table, in the order of their first blocks."""
        ordered = sorted(self.records.values(), key=lambda record: record.blocks)
        return [record.tables[table] for record in ordered]

    def all_files(self) -> list[File]:
        return [file for record in self.records.values() for file in record.tables.values()]

    def without(self, lost: Iterable[str]) -> State:
        """Leave out the records that vouch for any of these files."""
        lost = set(lost)
        kept = {
            name: record
            for name, record in self.records.items()
            if lost.isdisjoint(file.name for file in record.tables.values())
        }
        return replace(self, records=kept)


def read_state(folder: Folder, manifest: Manifest, *, salvage: bool = False) -> State:
    """Read which blocks are done; damage is an error, unless it is to be `salvage`d.

    A damaged record costs its own blocks. Where a base is damaged, every sound record counts.
    """
    # Records first: those that a newer claim lists are there, whatever was listed before.
    records = {
        (int(match[1]), int(match[2])): name
        for name in folder.names(RECORDS)
        if (match := _RECORD.fullmatch(name))
    }
    claims = folder.names(CLAIMS)
    bases = [int(match[1]) for name in claims if (match := _BASE.fullmatch(name))]
    epoch = max([*bases, *(of for of, _ in records)], default=0)
    damaged: list[str] = []
    earlier: list[str] = []
    deaths: dict[int, int] = {}
    if epoch:
        try:
            base = unsealed(folder.read(base_name(epoch)) or b"")
            if base["manifest"] != manifest.digest:
                raise another_manifest(folder, base_name(epoch))
            earlier = [name for name in base["records"] if _RECORD.fullmatch(name)]
            deaths = {int(number): int(count) for number, count in base["deaths"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged.append(base_name(epoch))
            earlier = [name for place, name in sorted(records.items()) if place[0] < epoch]
    last = max([number for of, number in records if of == epoch], default=0)
    names = [*earlier, *(record_name(epoch, number) for number in range(1, last + 1))]
    contents = folder.read_all(names)
    read: dict[str, FileSet] = {}
    taken = bytearray(manifest.blocks)
    for name in names:
        try:
            record = _parsed(contents.get(name, b""), name, manifest)
            if any(taken[number] for number in record.blocks):
                raise ValueError("another record has its blocks")
        except LookupError:
            raise another_manifest(folder, name) from None
        except ValueError:
            damaged.append(name)
            continue
        read[name] = record
        for number in record.blocks:
            taken[number] = 1
        deaths |= record.deaths
    if damaged and not salvage:
        raise RunError(
            f"{damaged[0]} in {str(folder)!r} is missing or damaged; see all with normlens check "
            f"{folder}, compute what it stood for again with normlens run --resume {folder}"
        )
    return State(epoch, read, deaths, tuple(damaged))


# Writing.


class Ledger:
    """The ledger in the hands of the driver of one epoch."""

    def __init__(self, folder: Folder, manifest: Manifest, epoch: int):
        self.folder, self.manifest, self.epoch = folder, manifest, epoch
        self._number = 0  # records so far
        self._done = bytearray(manifest.blocks)

    @classmethod
    def claim(cls, folder: Folder, manifest: Manifest) -> Ledger:
        """Claim the next epoch of a run; who is second stops."""
        matches = (re.match(r"(?:claims|records)/(\d+)", name) for name in _ledger_names(folder))
        epoch = 1 + max((int(match[1]) for match in matches if match), default=0)
        claim = {
            "manifest": manifest.digest,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": _now(),
            "token": uuid.uuid4().hex,
        }
        ledger = cls(folder, manifest, epoch)
        if not folder.create(claim_name(epoch), sealed(claim)):
            raise ledger._replaced()
        return ledger

    def begin(self, state: State) -> None:
        """Go on from `state`, which was read after the claim."""
        base = {
            "manifest": self.manifest.digest,
            "records": list(state.records),
            "deaths": {str(number): count for number, count in state.deaths.items()},
        }
        if not self.folder.create(base_name(self.epoch), sealed(base)):
            raise self._replaced()
        self._done = state.done(self.manifest.blocks)

    def commit(self, written: FileSet) -> None:
        """Vouch for a set of files: the record is on the disk, or in the store, on return."""
        for number in written.blocks:
            assert not self._done[number], f"block {number} was committed before"
            self._done[number] = 1
        self.check()
        self._number += 1
        name = record_name(self.epoch, self._number)
        if not self.folder.create(name, _record_bytes(written, self.manifest.digest)):
            raise self._replaced()

    def check(self) -> None:
        """Stop if another driver has claimed the run."""
        if self.folder.read(claim_name(self.epoch + 1)) is not None:
            raise self._replaced()

    def left(self) -> Iterator[int]:
        """The numbers of the blocks that are not done."""
        return (number for number in range(self.manifest.blocks) if not self._done[number])

    def sweep(self, state: State, names: Iterable[str]) -> None:
        """Remove what is stray among the files of a complete run."""
        stray = strays(state, names, self.epoch)
        if stray:
            self.check()
            self.folder.remove(stray)

    def _replaced(self) -> RunError:
        return RunError(
            f"another process has taken over the run in {str(self.folder)!r}; what was done is "
            "kept, and that process goes on with it"
        )


def strays(state: State, names: Iterable[str], epoch: int) -> list[str]:
    """Files of a run, of this epoch or before it, that nothing vouches for, or half-written."""
    vouched = {file.name for file in state.all_files()} | state.records.keys()
    stray = []
    for name in names:
        place = _TABLE.fullmatch(name) or _RECORD.fullmatch(name)
        if place is not None:
            of = int(place[3] if name.startswith(TABLES) else place[1])
            if of <= epoch and name not in vouched:
                stray.append(name)
        elif name.endswith(TEMPORARY) and name.partition("/")[0] in (CLAIMS, RECORDS, TABLES, name):
            stray.append(name)
    return stray


def _ledger_names(folder: Folder) -> list[str]:
    return [*folder.names(CLAIMS), *folder.names(RECORDS)]


def is_of_run(name: str) -> bool:
    """Whether a name is one that a run gives to files of its ledger or its tables."""
    return any(kind.fullmatch(name) for kind in (_CLAIM, _BASE, _RECORD, _TABLE))


def wrong_files(state: State, stamps: Mapping[str, Stamp]) -> list[str]:
    """The files that are missing, or have another size than their records say."""
    sizes = {name: stamp.size for name, stamp in stamps.items()}
    return [file.name for file in state.all_files() if sizes.get(file.name) != file.bytes]


# One process at a time in a folder on a disk.


_ATTEMPTS = 4


@dataclass(frozen=True)
class Lock:
    """The lock of a folder while it is held; a store without locks has one that is always there."""

    path: Path | None = None
    descriptor: int = -1
    #: by which workers recognise the folder, wherever they are; None where there is no lock
    token: str | None = None

    def check(self) -> None:
        """Refuse to go on if the folder is no longer where it was: moved, removed or replaced."""
        if self.path is None:
            return
        with suppress(OSError):
            there = os.stat(self.path, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self.descriptor)):
                return
        raise OutputError(
            f"{str(self.path.parent)!r} was moved or removed while the run went on; what was done "
            "is kept where it is now: go on with normlens run --resume and that folder"
        )


@contextmanager
def locked(folder: Folder) -> Iterator[Lock]:
    """Hold the folder's lock, or say who holds it.

    The lock belongs to the open file, so the system lifts it when its holder ends, however it
    ends. Object stores have no locks; there it is for the user to start one run only. A folder that
    is new and that nothing was written to before an error is removed again.
    """
    if not isinstance(folder, LocalFolder):
        yield Lock()
        return
    path = folder.path / LOCK
    is_new = not folder.path.exists()
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        # A lock that is a link could have another file emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
    try:
        if not _take(descriptor, path):
            raise RunError(
                f"another process{_owner(descriptor)} is working in {str(folder)!r}; wait until it "
                "has ended, or end it"
            )
        lock = Lock(path, descriptor, uuid.uuid4().hex)
        lock.check()  # who had it before may have removed the folder
        holding = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        _write(descriptor, json.dumps({**holding, "token": lock.token}).encode())
        try:
            yield lock
        except BaseException:
            with suppress(OSError):  # among other reasons because the folder is gone
                if is_new and os.listdir(folder.path) == [LOCK]:
                    path.unlink()
                    folder.path.rmdir()
            raise
        finally:
            # The file stays: removing it would let two others lock two files of one name.
            _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> bool:
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)  # `holder` touches it for a moment; a run holds it for longer
        except OSError as error:
            raise OutputError(f"cannot lock {str(path)!r}: {system_reason(error)}") from error
    return False


def holder(folder: Folder) -> str | None:
    """Tell who works in the folder now ("pid 71 on node3"); None if nobody does or can tell."""
    if not isinstance(folder, LocalFolder):
        return None
    try:
        # Neither a link nor a pipe in its place is worth waiting for.
        descriptor = os.open(folder.path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor).strip(" ()") or "another process"
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def check_same_folder(folder: Folder, token: str | None) -> None:
    """Refuse a folder that is not the one in which the driver holds the lock with this token.

    A worker on another machine calls it: a path there may be another disk's.
    """
    for attempt in range(_ATTEMPTS):
        if token is None or token.encode() in (folder.read(LOCK) or b""):
            return
        if attempt + 1 < _ATTEMPTS:
            time.sleep(1.0)  # a network's disk may show a new file a little later
    raise RunError(
        f"the worker on {socket.gethostname()} does not see the run's folder {str(folder)!r}, "
        "where it writes its tables; give --out a folder on a disk that all machines share, or a "
        "URL such as s3://bucket/run"
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _owner(descriptor: int) -> str:
    try:
        owner = parse_json(os.pread(descriptor, 4096, 0))
        return f" (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return ""  # it has the lock but has not written its name yet


def _write(descriptor: int, contents: bytes) -> None:
    with suppress(OSError):  # a courtesy; a full disk must not hide what else went wrong
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, contents, 0)
        os.fsync(descriptor)  # workers on other machines look for it
