"""How busy a corpus run keeps a GPU: the similarity measure over many sequences of one length.

The model is a random one of BERT-base's shape, and the sequences are random words. The share is
what `nvidia-smi` samples while the run is on, from the reading of the data to the last table: the
part of the time in which any kernel runs. `gpu.py` prints the table.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

WORDS = 20_000
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


def corpus_table(sequences: int = 10_000, tokens: int = 128) -> list[str]:
    """The table, as lines."""
    from normlens.corpus import run

    lens = _lens()
    lines = [
        f"A corpus run of the measure `similarity`, {sequences:,} sequences of {tokens} tokens, "
        "12 layers of BERT-base shape, one process, from JSON lines to Parquet tables:",
        "",
        "| precision | seconds | GPU busy | tables | files | failures |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "words.jsonl"
        _write_words(data, sequences, tokens - 2)
        for precision in ("float32", "tf32"):
            few = Path(scratch) / f"few-{precision}"
            run(lens, data, few, measures=["similarity"], precision=precision, limit=320)
            out = Path(scratch) / precision
            with _Sampled() as busy:
                started = time.perf_counter()
                made = run(lens, data, out, measures=["similarity"], precision=precision)
                seconds = time.perf_counter() - started
            sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
            status = made.status()
            lines.append(
                f"| {precision} | {seconds:.1f} | **{busy.share:.0%}** "
                f"| {sum(sizes) / 1e6:.0f} MB | {len(sizes)} | {status.failures} |"
            )
            print(lines[-1], flush=True)
    return [*lines, ""]


def _lens() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    import normlens

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    names = [*special, *(f"w{k}" for k in range(WORDS))]
    tokenizer = Tokenizer(WordLevel({name: k for k, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    model = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False).eval()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    return normlens.load(model, tokenizer=fast, device="cuda")


def _write_words(path: Path, sequences: int, words: int) -> None:
    chosen = random.Random(0)
    with path.open("w") as file:
        for _ in range(sequences):
            text = " ".join(f"w{chosen.randrange(WORDS)}" for _ in range(words))
            file.write(json.dumps({"text": text}) + "\n")


class _Sampled:
    """The share of the time in which the GPU is busy, while this is entered."""

    def __enter__(self) -> _Sampled:
        self._process = subprocess.Popen([*QUERY, "-lms", "100"], stdout=subprocess.PIPE, text=True)
        self._samples: list[float] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._samples.append(float(line) / 100)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._reader.join()

    @property
    def share(self) -> float:
        return sum(self._samples) / max(1, len(self._samples))
