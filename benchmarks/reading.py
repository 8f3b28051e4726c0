"""How fast data of any size is read through and indexed, in how much memory, and how it seeks.

    python benchmarks/reading.py --gigabytes 2

writes files of that size to a temporary folder, one format after the other, and prints a line for
each: MB/s of the one reading (processor time, so that what else the machine does counts little),
how often a plain SHA-256 of the file goes into that time, the peak of resident memory beyond that
at the start, and the seconds that it takes to read the last block alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from normlens.corpus import open_data
from normlens.corpus.data.records import Mark, sha256_of
from normlens.corpus.runs.data_index import checksum, index_data

WORDS = [f"word{n}" for n in range(5000)]
BLOCK = 64


def texts(seed: int, count: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(5, 60))) for _ in range(count)]


def write_lines(path: Path, size: int, line: Callable[[str], str], header: str = "") -> None:
    block = "".join(line(text) for text in texts(0, 20_000)).encode()
    with path.open("wb") as file:
        file.write(header.encode())
        while file.tell() < size:
            file.write(block)


def write_parquet(path: Path, size: int) -> None:
    """Row groups of 200,000 rows, as large as any writer makes by itself."""
    table = pa.table({"text": texts(0, 200_000)})
    with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
        while path.stat().st_size < size:
            writer.write_table(table, row_group_size=len(table))


FORMATS: dict[str, Callable[[Path, int], None]] = {
    "txt": lambda path, size: write_lines(path, size, lambda text: f"{text}\n"),
    "jsonl": lambda path, size: write_lines(
        path, size, lambda text: json.dumps({"text": text}) + "\n"
    ),
    "csv": lambda path, size: write_lines(
        path, size, lambda text: f'1,"{text}\nand more"\n', "n,text\n"
    ),
    "parquet": write_parquet,
}


def measure(path: str) -> dict[str, Any]:
    """Read a file through, in a process of its own: its peak of memory is that of the reading."""
    data = open_data(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    index = index_data(data, BLOCK).index
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    start = time.process_time()
    sha256_of(Path(path))
    hashing = time.process_time() - start
    start = time.perf_counter()
    last = len(index.marks) - 1
    records = data.reading(Mark(*map(int, index.marks[last])))
    assert checksum(records) == index.checksums[last]
    seeking = time.perf_counter() - start
    return {
        "sequences": index.sequences,
        "seconds": seconds,
        "hashing": hashing,
        "peak_mb": peak / (1 << (20 if sys.platform == "darwin" else 10)),
        "last_block_seconds": seeking,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats.split(","):
            path = Path(folder) / f"data.{name}"
            FORMATS[name](path, size)
            megabytes = path.stat().st_size / 1e6
            with context.Pool(1) as pool:
                found = pool.apply(measure, (str(path),))
            path.unlink()
            times = found["seconds"] / found["hashing"]
            print(
                f"{name:8}{megabytes:7.0f} MB, {found['sequences']:,} sequences: "
                f"{megabytes / found['seconds']:.0f} MB/s, {times:.0f} times SHA-256, "
                f"peak + {found['peak_mb']:.0f} MB, "
                f"last block alone in {found['last_block_seconds']:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
