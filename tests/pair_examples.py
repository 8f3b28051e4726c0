"""Tiny encoder–decoders with tokenizers: a fast one, and one that only knows letters."""

from __future__ import annotations

import string
from typing import Any

from normlens.models.tiny import scramble, tiny_config

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<en>", "<fr>"]


def with_head(family: str, seed: int = 0, **overrides: Any) -> Any:
    """A tiny model that can generate."""
    import transformers

    config = tiny_config(family, **overrides)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager")
    scramble(model, seed)
    return model.eval()


def fast_tokenizer() -> Any:
    """Byte-level pairs, whose tokens are marked where a word begins: ``<s> text </s>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = ["the house is small and green", "la maison est petite et verte", "don't stop ."]
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=SPECIAL[:4], show_progress=False)
    backend.train_from_iterator(4 * texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = ("bos_token", "pad_token", "eos_token", "unk_token")
    special = dict(zip(names, SPECIAL[:4], strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


class Letters:
    """A tokenizer without offsets: a word is its letters, the first of them marked.

    `source` and `target` say which special tokens stand before and behind a text. A ligature in
    `merged` is one token across a space, so that words on their own have other tokens.
    """

    is_fast = False
    unk_token, unk_token_id = "<unk>", 3

    def __init__(
        self,
        source: tuple[list[str], list[str]] = ([], ["</s>"]),
        target: tuple[list[str], list[str]] = ([], ["</s>"]),
        merged: str | None = None,
    ):
        letters = [*string.ascii_lowercase, *(f"▁{letter}" for letter in string.ascii_lowercase)]
        self.vocabulary = [*SPECIAL, *letters]
        self.all_special_ids = list(range(len(SPECIAL)))
        self.frames = {False: source, True: target}
        self.merged = merged

    def __call__(
        self,
        text: str | None = None,
        *,
        text_target: str | None = None,
        add_special_tokens: bool = True,
        verbose: bool = True,
    ) -> dict[str, list[int]]:
        is_target = text is None
        given = str(text_target if is_target else text)
        tokens = []
        if self.merged is not None:
            given = given.replace(self.merged, "z")
        for word in given.split():
            tokens += [f"▁{word[0]}", *word[1:]]
        if add_special_tokens:
            before, behind = self.frames[is_target]
            tokens = [*before, *tokens, *behind]
        known = {token: place for place, token in enumerate(self.vocabulary)}
        return {"input_ids": [known.get(token, self.unk_token_id) for token in tokens]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.vocabulary[i] for i in ids]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.all_special_ids)]
        return "".join(self.convert_ids_to_tokens(kept)).replace("▁", " ").strip()
