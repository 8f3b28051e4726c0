"""What one explanation takes on a GPU beside the model's plain forward pass.

Weights are random; both are measured as a user calls them, once they are warm. `gpu.py` prints the
table.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from normlens.explain import explainer

#: Model, dtype, tokens.
CASES = (
    ("BERT-base", torch.float32, (16, 128)),
    ("GPT-2", torch.float32, (1024, 4096)),
    ("Llama-8B", torch.bfloat16, (512, 2048, 8192, 32768, 131072)),
)


def model_of(name: str, layers: int = 32) -> Any:
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(0)
    if name == "BERT-base":
        return BertForSequenceClassification(BertConfig(attn_implementation="sdpa"))
    if name == "GPT-2":
        return GPT2LMHeadModel(GPT2Config(n_positions=4096, attn_implementation="sdpa"))
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def median(work: Callable[[], object], times: int = 5) -> tuple[float, float]:
    """Milliseconds, once warm, and the peak of memory beside what is there before, in GiB.

    What is done once takes so long that it is not warmed up.
    """
    for _ in range(2 if times > 1 else 0):
        work()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, taken = torch.cuda.memory_allocated(), []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) * 1e3)
    peak = torch.cuda.max_memory_allocated() - before
    return statistics.median(taken), peak / 2**30


def explain_table() -> list[str]:
    """The table, as lines, and how far half precision is from float32."""
    lines = [
        "One contrast explained without flow maps, beside the model's plain forward pass (sdpa, "
        "the last position's logits alone), in ms, and memory beside the weights, in GiB:",
        "",
        "| model | layers | n | forward | explain | explain ÷ forward "
        "| forward's memory | explain's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, dtype, lengths in CASES:
        lens = lens_of(name, dtype)
        alone: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1}
        alone = {} if name == "BERT-base" else alone
        for n in lengths:
            ids = torch.randint(1, 900, (1, n), device="cuda")
            asked = {"input_ids": ids[0].tolist(), "target": 1, "contrast": 0, "flow": False}
            times = 5 if n < 32768 else 1
            with torch.no_grad():
                plain, room = median(partial(lens.adapter.whole, input_ids=ids, **alone), times)
            ours, used = median(partial(lens.explain, progress=False, **asked), times)
            lines.append(
                f"| {name} | {lens.n_layers} | {n} | {plain:.1f} | {ours:.1f} "
                f"| **{ours / plain:.2f}** | {room:.1f} | {used:.1f} |"
            )
            print(lines[-1], flush=True)
        if name == "Llama-8B":
            cited = cite_line(lens)
        del lens
        torch.cuda.empty_cache()
    return [*lines, "", cited, "", *errors_in_half_precision(), ""]


def cite_line(lens: Any, words: int = 8192, answer: int = 256, sources: int = 64) -> str:
    """What one citation takes, of random words that are a token each."""
    import normlens

    lens = normlens.load(lens.adapter.whole, tokenizer=word_tokenizer())
    chosen = random.Random(0)
    text = [f"w{chosen.randrange(900)}" for _ in range(words + answer)]
    each = words // sources
    passages = [" ".join(text[k : k + each]) for k in range(0, words, each)]
    asked = {"answer": " ".join(text[words:]), "progress": False}
    taken, room = median(partial(lens.cite, "w1 w2 w3", passages, **asked), 2)
    line = (
        f"One citation of an answer of {answer} tokens over {words:,} of context in {sources} "
        f"passages, that Llama: {taken / 1e3:.2f} s, {room:.1f} GiB beside the weights."
    )
    print(line, flush=True)
    return line


def word_tokenizer() -> Any:
    """A tokenizer whose tokens are the words w0, w1, …"""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{k}": k for k in range(1000)} | {"<pad>": 1000, "<unk>": 1001}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", unk_token="<unk>")


def lens_of(name: str, dtype: torch.dtype, layers: int = 32) -> Any:
    import normlens

    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = model_of(name, layers).eval()
    torch.set_default_dtype(torch.float32)
    return normlens.load(model, tokenizer=False)


def errors_in_half_precision(layers: int = 8) -> list[str]:
    """Contributions in bfloat16 against those of the same weights in float32.

    The gradients of long texts are rounded to bfloat16 once; here they are split into two, too.
    """
    import normlens

    lens = lens_of("Llama-8B", torch.bfloat16, layers)
    texts = [torch.randint(1, 900, (n,)).tolist() for n in (512, 2048, 8192)]
    asked = {"target": 1, "contrast": 0, "flow": False, "progress": False}

    def contributions(of: Any) -> list[Any]:
        return [of.explain(input_ids=ids, **asked).contributions for ids in texts]

    rounded = contributions(lens)
    with mock.patch.object(explainer, "rounded_once", nullcontext):
        split = contributions(lens)
    exact = contributions(normlens.load(lens.adapter.whole.float(), tokenizer=False))
    lines = []
    for way, half in (("rounded once", rounded), ("split into two", split)):
        errors = [
            f"{np.linalg.norm(found - right) / np.linalg.norm(right):.1e} at {len(ids):,} tokens"
            for ids, found, right in zip(texts, half, exact, strict=True)
        ]
        lines.append(
            f"Contributions in bfloat16 against float32, {layers} layers of that Llama, gradients "
            f"of long texts {way} (relative error of the whole vector): {', '.join(errors)}."
        )
        print(lines[-1], flush=True)
    return lines
