"""A tiny model with a tokenizer, a small corpus, and how to compare two runs."""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_records import reseal

from normlens.corpus import Run
from normlens.loading.hub import quiet_transformers

MEASURES = "similarity,mixing,amplification,norms"
FRAME = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_tokenizer() -> Any:
    """WordPiece on single letters, so that every word has as many tokens as letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_lowercase
    vocabulary = [*FRAME, *letters, *(f"##{letter}" for letter in letters)]
    backend = Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, FRAME, strict=True)))


def tiny_checkpoint(
    folder: Path, seed: int = 0, model_type: str = "bert", overflow: str | None = None
) -> Path:
    """A random model and its tokenizer, saved; the letter `overflow` makes its vectors infinite."""
    import torch

    from normlens.models.tiny import tiny_model

    pad = {"pad_token_id": 0} if model_type == "bert" else {}
    model = tiny_model(model_type, seed, **pad)
    tokenizer = tiny_tokenizer()
    if overflow is not None:
        with torch.no_grad():
            row = model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids(overflow)]
            row.copy_(3e38 * torch.tensor([1.0, -1.0]).repeat(len(row) // 2))
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def corpus_file(path: Path, sequences: int, seed: int = 0, letters: str = "abcdefgh") -> Path:
    """Lines of one to eight words of one to three letters."""
    chance = random.Random(seed)
    lines = [
        " ".join(
            "".join(chance.choices(letters, k=chance.randint(1, 3)))
            for _ in range(chance.randint(1, 8))
        )
        for _ in range(sequences)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


#: For tests in which some sequences of a run fail.
some_fail = pytest.mark.filterwarnings("ignore::normlens.corpus.runs.folder.SomeFailedWarning")


def frames_of(run: Run) -> dict[str, pd.DataFrame]:
    """Read every table of a run, for comparisons with several others."""
    return {name: run.table(name) for name in run.tables}


def assert_same_tables(a: Run, b: Run | dict[str, pd.DataFrame], tolerance: float = 1e-6) -> None:
    """Every table of two runs, row for row; 0 asks for the same bits."""
    expected = frames_of(b) if isinstance(b, Run) else b
    assert list(a.tables) == list(expected)
    for name, frame in expected.items():
        assert_same_frames(a.table(name), frame, name, tolerance)


def assert_same_frames(
    a: pd.DataFrame, b: pd.DataFrame, name: str, tolerance: float = 1e-6
) -> None:
    assert list(a.columns) == list(b.columns), name
    assert len(a) == len(b), name
    for column in a.columns:
        left, right = a[column].to_numpy(), b[column].to_numpy()
        if left.dtype.kind == "f":
            np.testing.assert_allclose(
                left, right, rtol=tolerance, atol=tolerance, err_msg=f"{name}.{column}"
            )
        else:
            missing = pd.isna(left)
            assert (missing == pd.isna(right)).all(), f"{name}.{column}"
            assert (left[~missing] == right[~missing]).all(), f"{name}.{column}"


def assert_each_once(run: Run) -> None:
    """Every sequence is analysed or has failed, once."""
    found = run.sql(
        'SELECT "index" FROM sequences UNION ALL SELECT "index" FROM failures ORDER BY 1'
    )
    assert found["index"].tolist() == list(range(run.manifest.sequences))


def forge(out: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit a run's manifest as a stranger would: every digest fits what it says afterwards."""
    path = out / "manifest.json"
    found = json.loads(path.read_text())
    edit(found)
    if "digest" in found:
        rest = {k: v for k, v in found.items() if k not in ("format", "version", "digest")}
        found["digest"] = _sha256(rest)
    path.write_text(json.dumps(found))
    for path in (*out.glob("claims/*"), *out.glob("records/*")):
        reseal(path, found["digest"])


def _sha256(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def flip(path: Path, place: int, bit: int = 6) -> None:
    """Damage one bit of a file."""
    contents = bytearray(path.read_bytes())
    contents[place % len(contents)] ^= 1 << bit
    path.write_bytes(bytes(contents))
