"""What an explanation costs, beside the model's plain forward pass and integrated gradients.

Ratios of times and of memory that were measured in one run:

    time      explain / forward       the model's plain forward pass, eager attention
    captum    captum / explain        integrated gradients of the same number, 50 steps
    memory    explain / forward       peak of live tensors beside the weights, the forward pass
                                      keeping its hidden states

    python benchmarks/explain.py            # MiniLM and SmolLM2 on a CPU
    python benchmarks/explain.py --captum   # and Captum beside it (pip install captum)
    python benchmarks/explain.py --gpu      # a Llama 8B shape in bfloat16 on a GPU
    python benchmarks/explain.py --docs     # also writes the table into docs/explain.md
"""

from __future__ import annotations

import argparse
import re
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LENGTHS = (32, 128, 512)
STEPS = 50
DOCS = Path(__file__).resolve().parents[1] / "docs" / "explain.md"


class PeakMemory(TorchDispatchMode):
    """The peak of what tensors that are made inside hold at once, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def best(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """The shortest of several times, in seconds."""
    shortest = float("inf")
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def integrated_gradients(model: Any, ids: list[int], score: Callable[[Any], Any]) -> Any:
    """Captum's attribution of the same number to the embeddings."""
    from captum.attr import IntegratedGradients

    embedded = model.get_input_embeddings()(torch.tensor([ids])).detach()

    def forward(vectors: torch.Tensor) -> torch.Tensor:
        return score(model(inputs_embeds=vectors))

    return IntegratedGradients(forward).attribute(embedded, n_steps=STEPS, internal_batch_size=1)


class Case:
    """One model and one text: its forward pass, its explanation, and what is explained."""

    def __init__(self, lens: Any, n: int):
        self.lens, self.model = lens, lens.adapter.whole
        self.ids = [1000 + 7 * k for k in range(n)]
        self.inputs = torch.tensor([self.ids])
        self.decoder = lens.causal
        self.asked: dict[str, Any] = (
            {"target": 338, "contrast": 314}
            if self.decoder
            else {"direction": torch.ones(384), "position": 0}
        )

    def score(self, output: Any) -> torch.Tensor:
        if self.decoder:
            return output.logits[:, -1, 338] - output.logits[:, -1, 314]
        return output.last_hidden_state[:, 0].sum(-1)

    def forward(self, **options: Any) -> Any:
        with torch.no_grad():
            return self.model(input_ids=self.inputs, **options)

    def explain(self) -> Any:
        return self.lens.explain(input_ids=self.ids, **self.asked)


def on_cpu(captum: bool, repeats: int) -> list[tuple[str, int, float, float, float | None]]:
    import normlens

    rows = []
    for name in ("minilm", "smollm2"):
        lens = normlens.load(name, device="cpu")
        for n in LENGTHS:
            case = Case(lens, n)
            case.explain()
            # In turns, so that both see the same noise.
            times = [
                (best(case.forward, 1, lens.device), best(case.explain, 1, lens.device))
                for _ in range(repeats)
            ]
            plain, ours = (min(column) for column in zip(*times, strict=True))
            with PeakMemory() as without:
                case.forward(output_hidden_states=True)
            with PeakMemory() as with_it:
                case.explain()
            ratio = None
            if captum:
                case.model.requires_grad_(False)
                ratio = (
                    best(
                        lambda case=case: integrated_gradients(case.model, case.ids, case.score),
                        1,
                        lens.device,
                    )
                    / ours
                )
            rows.append((name, n, ours / plain, with_it.peak / without.peak, ratio))
            print(*rows[-1], flush=True)
    return rows


def on_gpu(repeats: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    import normlens

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        pad_token_id=0,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    lens = normlens.load(model, tokenizer=False)
    for n in (2048, 8192):
        ids = torch.randint(5, 128000, (n,)).tolist()
        inputs = torch.tensor([ids], device="cuda")
        forward = partial(no_grad, model, input_ids=inputs, use_cache=False, logits_to_keep=1)
        plain = best(forward, repeats, lens.device)
        torch.cuda.reset_peak_memory_stats()
        forward(output_hidden_states=True)
        room = torch.cuda.max_memory_allocated()
        for flow in (None, False):
            explain = partial(lens.explain, input_ids=ids, target=100, contrast=200, flow=flow)
            explain()
            ours = best(explain, repeats, lens.device)
            torch.cuda.reset_peak_memory_stats()
            why = explain()
            used = torch.cuda.max_memory_allocated()
            print(
                f"n={n} flow={bool(why.flows)}: forward {plain * 1e3:.0f} ms, explain "
                f"{ours * 1e3:.0f} ms, ratio {ours / plain:.2f}, memory with weights "
                f"{used / room:.2f}, completeness {why.completeness:.1e}",
                flush=True,
            )


def no_grad(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


def table(rows: list[tuple[str, int, float, float, float | None]]) -> str:
    lines = [
        "| model | tokens | explain / forward | memory / forward | Captum (50 steps) / explain |",
        "|---|---|---|---|---|",
    ]
    for name, n, ratio, memory, captum in rows:
        beside = "" if captum is None else f"{captum:.0f}"
        lines.append(f"| {name} | {n} | {ratio:.1f} | {memory:.1f} | {beside} |")
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table between its marks in the documentation."""
    page = DOCS.read_text("utf-8")
    marked = f"<!-- cost -->\n{text}\n<!-- /cost -->"
    DOCS.write_text(re.sub(r"<!-- cost -->.*?<!-- /cost -->", marked, page, flags=re.S), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captum", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.gpu:
        on_gpu(options.repeats)
        return
    text = table(on_cpu(options.captum, options.repeats))
    print(text)
    if options.docs:
        write(text)


if __name__ == "__main__":
    main()
