"""What one explanation takes on a GPU beside the model's plain forward pass.

Weights are random; both are measured as a user calls them, once they are warm. `gpu.py` prints the
table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

#: Model, dtype, tokens.
CASES = (
    ("BERT-base", torch.float32, (16, 128)),
    ("GPT-2", torch.float32, (1024, 4096)),
    ("Llama-8B", torch.bfloat16, (512, 2048)),
)


def model_of(name: str) -> Any:
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
        return BertForSequenceClassification(BertConfig(attn_implementation="eager"))
    if name == "GPT-2":
        return GPT2LMHeadModel(GPT2Config(n_positions=4096, attn_implementation="eager"))
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def median(work: Callable[[], object], times: int = 7) -> float:
    """Milliseconds, once warm."""
    for _ in range(4):
        work()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def explain_table() -> list[str]:
    """The table, as lines."""
    import normlens

    lines = [
        "One contrast explained, with its flow maps where these are kept by default, beside the "
        "model's plain forward pass (eager attention), in ms:",
        "",
        "| model | layers | n | forward | explain | explain ÷ forward |",
        "|---|---|---|---|---|---|",
    ]
    for name, dtype, lengths in CASES:
        torch.set_default_dtype(dtype)
        with torch.device("cuda"):
            model = model_of(name).eval()
        torch.set_default_dtype(torch.float32)
        lens = normlens.load(model)
        without_cache = {} if name == "BERT-base" else {"use_cache": False}
        for n in lengths:
            ids = torch.randint(1, 900, (1, n), device="cuda")
            given = ids[0].tolist()
            plain = median(partial(model, input_ids=ids, **without_cache))
            ours = median(partial(lens.explain, input_ids=given, target=1, contrast=0))
            lines.append(
                f"| {name} | {lens.n_layers} | {n} | {plain:.1f} | {ours:.1f} "
                f"| **{ours / plain:.2f}** |"
            )
            print(lines[-1], flush=True)
        lens = model = None
        torch.cuda.empty_cache()
    return [*lines, ""]
