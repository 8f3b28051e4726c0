"""The call that a user makes, on a GPU: `lens.maps` of one text, all layers and scopes.

    whole     the call, from token ids to arrays on the CPU, once it is warm
    busy      the GPU's share of it: the time in which any kernel or copy runs
    kernel    the feed-forward kernels alone
    ceiling   one cuBLAS product with the operations of these kernels

`stream_table` asks what a user's texts take, which differ in length, one call each; and the first
call of a process. Weights are random. `gpu.py` prints the tables.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpu_stage import MIB, Shape, ceiling

from normlens.gpu.sizes import PRECISIONS

#: Kernels that stand for the operations of the feed-forward stage, by any method.
KERNELS = (
    r"feed_forward_sums|pair_sums|store_hidden|target_sums|mix_parts|scale_projections|nvjet|hss"
)


@dataclass(frozen=True)
class Call:
    """One model's shape and a text's length."""

    name: str
    n: int
    layers: int
    dtype: torch.dtype = torch.float32
    precisions: tuple[str, ...] = ("float32", "tf32")
    times: int = 5

    @property
    def shape(self) -> Shape:
        """The sizes of one layer."""
        if self.name == "Llama-8B":
            return Shape(self.name, self.n, 4096, 14336, 32, gated=True, causal=True)
        return Shape(self.name, self.n, causal=self.name == "GPT-2")

    def model(self) -> Any:
        from transformers import (
            BertConfig,
            BertModel,
            GPT2Config,
            GPT2Model,
            LlamaConfig,
            LlamaModel,
        )

        torch.manual_seed(0)
        if self.name == "BERT-base":
            config = BertConfig(num_hidden_layers=self.layers, attn_implementation="eager")
            return BertModel(config, add_pooling_layer=False)
        if self.name == "GPT-2":
            config = GPT2Config(n_positions=4096, n_layer=self.layers, attn_implementation="eager")
            return GPT2Model(config)
        config = LlamaConfig(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=self.layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=1000,
            max_position_embeddings=8192,
            attn_implementation="eager",
        )
        return LlamaModel(config)


CALLS = [
    Call("BERT-base", 128, 12),
    Call("GPT-2", 1024, 12),
    Call("GPT-2", 4096, 12, times=2),
    Call("Llama-8B", 512, 32, torch.bfloat16, ("tf32",), 2),
    Call("Llama-8B", 2048, 3, torch.bfloat16, ("tf32",), 2),
]


def call_table(calls: list[Call] = CALLS) -> list[str]:
    """The table, as lines."""
    import normlens

    lines = [
        "One text, all layers and scopes, float32 maps on the CPU; the whole call (the median of "
        "some, warm), the time in which the GPU was busy, its feed-forward kernels, and these "
        "kernels' operations at cuBLAS's speed, in ms; the peak is beyond the model:",
        "",
        "| model | layers | n | precision | whole | busy | kernel | ceiling | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ceilings = {dtype: ceiling(Shape("", 512), dtype) for dtype in (torch.bfloat16, torch.float16)}
    lens, last = None, None
    for call in calls:
        if (call.name, call.layers) != last:
            lens, last = None, (call.name, call.layers)
            torch.cuda.empty_cache()
            with torch.device("cuda"):
                model = call.model().to(call.dtype).eval()
            lens = normlens.load(model)
        assert lens is not None
        vocabulary = lens.model.config.vocab_size
        ids = torch.randint(0, vocabulary, (call.n,)).tolist()
        for name in call.precisions:
            precision = PRECISIONS[name]
            run = partial(lens.maps, input_ids=ids, precision=name)
            rate = ceilings[precision.operand] / (3 if precision.split else 1)
            floor = call.layers * call.shape.operations / rate / 1e9
            lines.append(_row(call, name, floor, *measured(run, call.times)))
            print(lines[-1], flush=True)
    return [*lines, ""]


def _row(
    call: Call, precision: str, floor: float, whole: float, busy: float, own: float, peak: float
) -> str:
    return (
        f"| {call.name} | {call.layers} | {call.n} | {precision} | **{whole:.1f}** | {busy:.1f} "
        f"| {own:.1f} | {floor:.1f} | {peak:.0f} |"
    )


def measured(run: Callable[[], object], times: int) -> tuple[float, float, float, float]:
    """Milliseconds of the call, of the GPU's work in it and of its kernels; the peak in MiB."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4 if times > 1 else 1):
        run()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    peak = (torch.cuda.max_memory_allocated() - before) / MIB
    spans = list(_spans(run))
    own = sum(end - start for start, end, name in spans if re.search(KERNELS, name))
    return statistics.median(taken), _union(spans), own, peak


def _spans(run: Callable[[], object]) -> Iterator[tuple[float, float, str]]:
    """When each kernel and copy of a run began and ended, in ms."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        run()
        torch.cuda.synchronize()
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            yield event.time_range.start / 1e3, event.time_range.end / 1e3, event.name


def _union(spans: list[tuple[float, float, str]]) -> float:
    total, until = 0.0, 0.0
    for start, end, _ in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


# Texts of different lengths, and the first call of a process.


#: Texts of a stream, how long they are, and how many calls are not counted.
TEXTS, LENGTHS, WARM = 200, (8, 64), 20


def stream_table() -> list[str]:
    """The table, as lines."""
    shortest, longest = LENGTHS
    lines = [
        f"{TEXTS} texts of {shortest} to {longest} tokens, one call each, beside one length again "
        f"and again, in ms; the first {WARM} calls are not counted:",
        "",
        "| call | model | median | 95th percentile | slowest | one length |",
        "|---|---|---|---|---|---|",
    ]
    chosen = random.Random(0)
    lengths = [chosen.randint(shortest, longest) for _ in range(TEXTS)]
    for name in ("maps", "explain"):
        model, call = _asked(name)
        taken = _taken(call, lengths)[WARM:]
        steady = _taken(call, [(shortest + longest) // 2] * 40)[WARM:]
        worst = statistics.quantiles(taken, n=20)[-1]
        lines.append(
            f"| `{name}` | {model} | **{statistics.median(taken):.1f}** | **{worst:.1f}** "
            f"| {max(taken):.1f} | {statistics.median(steady):.1f} |"
        )
        print(lines[-1], flush=True)
    seconds = []
    for _ in range(3):  # the first one compiles kernels
        printed = subprocess.run(
            [sys.executable, __file__], check=True, capture_output=True, text=True
        )
        seconds.append(float(printed.stdout.split()[-1]))
    line = (
        "The first call of a process (`maps`, BERT-base, 32 tokens, model loaded, kernels compiled "
        f"before) takes {min(seconds[1:]):.1f} s, with kernels to compile {seconds[0]:.1f} s."
    )
    print(line, flush=True)
    return [*lines, "", line, ""]


def _asked(name: str) -> tuple[str, Callable[[list[int]], object]]:
    """A model, and the call of it with a text's ids."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    import normlens

    torch.manual_seed(0)
    with torch.device("cuda"):
        if name == "maps":
            lens = normlens.load(BertModel(BertConfig(), add_pooling_layer=False).eval())
            return "BERT-base", lambda ids: lens.maps(input_ids=ids)
        lens = normlens.load(GPT2LMHeadModel(GPT2Config()).eval(), tokenizer=False)
    return "GPT-2", lambda ids: lens.explain(input_ids=ids, target=1, contrast=0)


def _taken(call: Callable[[list[int]], object], lengths: Sequence[int]) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for n in lengths:
        ids = torch.randint(1000, 20000, (n,)).tolist()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(ids)
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    _, first = _asked("maps")
    print(_taken(first, [32])[0] / 1e3)
