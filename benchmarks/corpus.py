"""What a corpus run costs beside the maps alone, and that its memory does not grow with the corpus.

Time: the embedded MiniLM on SST-2 (NORMLENS_TEST_DATA, or the sample inside the package), the
model loaded before. Runs and maps alone take turns, and of each the fastest turn counts: what else
the machine does can only make a turn slower. Processor time is what all threads worked; with
--threads 1 it does not depend on what else the machine does (threads that wait for each other work,
too, so with more it does).

    maps      every scope of every sequence, tokenised already, one call after the other
    +stats    the same with the statistics that the measure `norms` asks for
    run       the whole run: reading, tokenising, maps, four measures, tables, checksums, fsync

Memory: a tiny random model on few and on many short sequences, each in a process of its own.

Pairs: the size of the table amplification_pairs by the pairs of subwords that a run keeps.

    python benchmarks/corpus.py --pairs 300               # these sizes, of so many sequences
    python benchmarks/corpus.py                           # prints the tables
    python benchmarks/corpus.py --out docs/performance    # and writes corpus.md and corpus.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_source() -> str:
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", SHARED))
    path = folder / "sst2" / "dev.tsv"
    return f"sst2:{path}" if path.is_file() else "sample"


# Time ---------------------------------------------------------------------------------------------


def measure_time(sequences: int, repeats: int, threads: int | None, scratch: Path) -> dict:
    """Seconds of each way at its fastest, and where the run's own time went."""
    import torch

    import normlens
    from normlens.corpus import encode_record, open_data, run
    from normlens.options import AnalysisOptions

    if threads is not None:
        torch.set_num_threads(threads)
    lens = normlens.load("minilm", device="cpu").prepare()  # as a run does
    source = data_source()
    data = open_data(source, limit=sequences)
    encoded = [encode_record(record, lens.tokenizer, max_length=128) for record in data]
    lens.analyse(encoded[:8], AnalysisOptions(statistics=True))
    stages: dict[str, float] = {}

    def whole() -> None:
        nonlocal stages
        out = scratch / "run"
        shutil.rmtree(out, ignore_errors=True)
        stages = run(lens, source, out, limit=sequences).status().stages

    def alone(with_statistics: bool) -> None:
        # One at a time, as on a CPU the lens does anyway; nothing is kept.
        for sequence in sorted(encoded, key=len):
            lens.analyse([sequence], AnalysisOptions(statistics=with_statistics))

    ways = {"maps": lambda: alone(False), "+stats": lambda: alone(True), "run": whole}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            start, begin = time.perf_counter(), time.process_time()
            work()
            seconds[name].append(time.perf_counter() - start)
            busy[name].append(time.process_time() - begin)
            print(
                f"{name}: {seconds[name][-1]:.1f} s, {busy[name][-1]:.1f} s of a processor",
                file=sys.stderr,
                flush=True,
            )
    best = {name: min(times) for name, times in seconds.items()}
    worked = {name: min(times) for name, times in busy.items()}
    return {
        "data": source.partition(":")[0],
        "sequences": len(encoded),
        "tokens": sum(map(len, encoded)),
        "threads": torch.get_num_threads(),
        "turns": seconds,
        "seconds": best,
        "ratios": {name: best["run"] / best[name] for name in ("maps", "+stats")},
        "processor ratios": {name: worked["run"] / worked[name] for name in ("maps", "+stats")},
        "stages": stages,
    }


# Memory -------------------------------------------------------------------------------------------


def measure_memory(few: int, times: int, scratch: Path) -> dict[int, float]:
    """Peak MiB of a run over `few` sequences, and over so many times more."""
    make_model(scratch / "model")
    found = {}
    for count in (few, few * times):
        corpus = scratch / f"corpus-{count}.txt"
        chance = random.Random(0)
        with corpus.open("w") as lines:
            for _ in range(count):
                words = ["".join(chance.choices("abcdefgh", k=2)) for _ in range(4)]
                print(*words, file=lines)
        command = [sys.executable, __file__, "--peak-of", str(corpus), "--scratch", str(scratch)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[count] = float(done.stdout.split()[-1])
    return found


def make_model(folder: Path) -> None:
    """A tiny BERT whose vocabulary is letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from normlens.models.tiny import tiny_model

    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in "abcdefgh"]
    vocabulary = {token: place for place, token in enumerate(["[PAD]", "[UNK]", *letters])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_model("bert", pad_token_id=0).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


def print_peak(corpus: str, scratch: Path) -> None:
    import torch

    from normlens.corpus import run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        run(scratch / "model", corpus, Path(folder) / "run", device="cpu")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            print(int(line.split()[1]) / 1024)


# Pairs of subwords --------------------------------------------------------------------------------

#: What a run may be asked to keep.
KEPT = {
    "all pairs": {"min_count": 1, "keep_pairs": None},
    "those that occur twice": {"min_count": 2, "keep_pairs": None},
    "and at most 100,000 (default)": {"min_count": 2, "keep_pairs": 100_000},
}


def pair_sizes(source: str, sequences: int, block_size: int = 64) -> list[dict]:
    """The size of amplification_pairs under every choice, of maps that are computed once."""
    from dataclasses import replace

    import pyarrow as pa

    import normlens
    from normlens.corpus import encode_record, open_data
    from normlens.corpus.measures import Item, get
    from normlens.corpus.measures.tokens import PairCounter

    lens = normlens.load("minilm", device="cpu").prepare()
    encoded = [
        encode_record(record, lens.tokenizer, max_length=128)
        for record in open_data(source, limit=sequences)
    ]
    counter = PairCounter(lens.causal)
    for one in encoded:
        counter.add(one.ids)
    table, plain = "amplification_pairs", get("amplification")
    ways = {}
    for name, settings in KEPT.items():
        kept = counter.kept(**settings)
        ways[name] = replace(plain, **settings, least=kept.least, kept=kept)
    results = {
        name: {"kept": name, "least": way.least, "bytes": 0, "rows": 0}
        for name, way in ways.items()
    }
    for first in range(0, len(encoded), block_size):
        parts: dict[str, list] = {name: [] for name in ways}
        for index, one in enumerate(encoded[first : first + block_size], first):
            (maps,) = lens.analyse([one])
            for name, way in ways.items():
                parts[name].append(way.rows(Item(str(index), index, maps, one))[table])
        for name, way in ways.items():
            merged = way.combine(table, pa.concat_tables(parts[name]))
            results[name]["bytes"] += file_size(merged)
            results[name]["rows"] += merged.num_rows
        print(f"{first + block_size} sequences", file=sys.stderr, flush=True)
    return list(results.values())


def file_size(table: Any) -> int:
    """Bytes of a table as a block's file."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    labels = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    buffer = io.BytesIO()
    pq.write_table(table.unify_dictionaries(), buffer, compression="zstd", use_dictionary=labels)
    return buffer.tell()


def pair_report(sequences: int) -> str:
    """The sizes as Markdown."""
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", SHARED))
    sources = {
        "WikiText-2": f"wikitext:{folder / 'wikitext2' / 'wiki.valid.raw'}",
        "SST-2": f"sst2:{folder / 'sst2' / 'dev.tsv'}",
    }
    lines = ["| data | pairs of subwords that are kept | occurrences, at least | rows | MB |"]
    lines += ["|---|---|---|---|---|"]
    for data, source in sources.items():
        lines += [
            f"| {data}, {sequences} sequences | {row['kept']} | {row['least']} | {row['rows']:,} "
            f"| {row['bytes'] / 1e6:.1f} |"
            for row in pair_sizes(source, sequences)
        ]
    return "\n".join(lines)


# Report -------------------------------------------------------------------------------------------


def report(results: dict) -> str:
    """The tables as Markdown."""
    own = results["time"]
    total = sum(own["stages"].values())
    lines = [
        f"{results['cpu']}, {own['threads']} threads, torch {results['torch']}; MiniLM on "
        f"{own['sequences']} sequences of {own['data']} ({own['tokens']} tokens), all measures.",
        "",
        "| | run ÷ maps alone | run ÷ maps with statistics | where the run's time goes |",
        "|---|---|---|---|",
        f"| time | {own['ratios']['maps']:.2f} | {own['ratios']['+stats']:.2f} | "
        + ", ".join(f"{stage} {spent / total:.0%}" for stage, spent in own["stages"].items())
        + " |",
        f"| processor time | {own['processor ratios']['maps']:.2f} "
        f"| {own['processor ratios']['+stats']:.2f} | |",
    ]
    if results["memory"]:
        lines += ["", "| sequences | peak MiB |", "|---|---|"]
        lines += [f"| {count} | {peak:.0f} |" for count, peak in results["memory"].items()]
    return "\n".join(lines)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch; default: as it likes")
    parser.add_argument("--few", type=int, default=1000, help="sequences of the memory test")
    parser.add_argument("--times", type=int, default=10, help="and how many times more")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for corpus.md and corpus.json")
    parser.add_argument("--pairs", type=int, metavar="N", help="sizes of pairs of N sequences")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        print_peak(options.peak_of, options.scratch)
        return
    if options.pairs:
        print(pair_report(options.pairs))
        return
    import torch

    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        memory = {} if options.no_memory else measure_memory(options.few, options.times, scratch)
        results = {
            "cpu": cpu_name(),
            "torch": torch.__version__,
            "time": measure_time(options.sequences, options.repeats, options.threads, scratch),
            "memory": memory,
        }
    print(report(results))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "corpus.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "corpus.md").write_text(report(results) + "\n")


if __name__ == "__main__":
    main()
