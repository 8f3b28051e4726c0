"""Tokenizers of every type, trained on the embedded sample, and the real data where it is."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def real_data() -> Any:
    """A file of the real data sets, or a skip."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", root.parent / "shared" / "data"))

    def path(name: str) -> Path:
        if not (folder / name).is_file():
            pytest.skip(f"needs {name} in NORMLENS_TEST_DATA (looked in {folder})")
        return folder / name

    return path


@pytest.fixture(scope="session")
def wordpiece() -> Any:
    """The embedded model's own tokenizer, which is bert-base-uncased's."""
    from transformers import AutoTokenizer

    from normlens.loading.embedded import EMBEDDED

    folder = EMBEDDED["minilm"].folder()
    if folder is None:
        pytest.skip("the embedded model is not installed (normlens models --install minilm)")
    return AutoTokenizer.from_pretrained(folder / "model")


@pytest.fixture
def trained() -> Any:
    """A small tokenizer of a kind: ``trained("unigram")``."""
    return _train


@cache
def _train(kind: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    frame = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(
            vocab_size=400, special_tokens=frame, show_progress=False
        )
    elif kind.startswith("byte-bpe"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space="prefix" in kind)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=frame,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=frame, unk_token="[UNK]", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=frame, show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    if kind == "sentencepiece-bpe":
        # As in Llama 2: words are split in training only; later the normaliser writes the ▁.
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    _frame(tokenizer, kind)
    masks = {} if kind == "sentencepiece-bpe" else {"mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **masks,
    )


def _frame(tokenizer: Any, kind: str) -> None:
    from tokenizers import processors

    if kind == "byte-bpe-prefix":  # as in RoBERTa, whose offsets leave the space out
        ends = [(name, tokenizer.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True)
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )


def _texts() -> list[str]:
    from normlens.corpus import open_data

    return [" ".join(record.words or ()) for record in open_data("sample")]
