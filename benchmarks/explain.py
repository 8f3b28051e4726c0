"""What an explanation costs, beside the model's plain forward pass and integrated gradients.

Ratios of times and of memory that were measured in one run:

    time      explain / forward       the model's plain forward pass, sdpa
    captum    captum / explain        integrated gradients of the same number, 50 steps
    memory    explain / forward       peak of live tensors, the weights among them, the last
                                      position's logits alone; without flow maps where a text is
                                      too long for them

    python benchmarks/explain.py            # MiniLM and SmolLM2 on a CPU
    python benchmarks/explain.py --captum   # and Captum beside it (pip install captum)
    python benchmarks/explain.py --docs     # also writes the table into docs/explain.md
"""

from __future__ import annotations

import argparse
import re
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LENGTHS = (32, 128, 512, 2048)
STEPS = 50
DOCS = Path(__file__).resolve().parents[1] / "docs" / "explain.md"


class PeakMemory(TorchDispatchMode):
    """The peak of what a model's weights and the tensors made inside hold at once, in bytes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        tensors = [*model.parameters(), *model.buffers()]
        weights = {s._cdata: s.nbytes() for s in (each.untyped_storage() for each in tensors)}
        self.live = self.peak = sum(weights.values())
        self._seen = set(weights)

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

    def forward(self) -> Any:
        options = {"use_cache": False, "logits_to_keep": 1} if self.decoder else {}
        with torch.no_grad():
            return self.model(input_ids=self.inputs, **options)

    def explain(self) -> Any:
        return self.lens.explain(input_ids=self.ids, **self.asked)


def on_cpu(captum: bool, repeats: int) -> list[tuple[str, int, float, float, float | None]]:
    import normlens

    rows = []
    for name in ("minilm", "smollm2"):
        lens = normlens.load(name, device="cpu")
        lens.adapter.whole.set_attn_implementation("sdpa")
        for n in LENGTHS:
            if n > lens.max_tokens:
                continue
            case = Case(lens, n)
            case.explain()
            # In turns, so that both see the same noise.
            times = [
                (best(case.forward, 1, lens.device), best(case.explain, 1, lens.device))
                for _ in range(repeats)
            ]
            plain, ours = (min(column) for column in zip(*times, strict=True))
            with PeakMemory(case.model) as without:
                case.forward()
            with PeakMemory(case.model) as with_it:
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


def table(rows: list[tuple[str, int, float, float, float | None]]) -> str:
    heads = ["model", "tokens", "explain / forward", "memory / forward"]
    heads += ["Captum (50 steps) / explain"] if any(row[-1] for row in rows) else []
    lines = [heads, ["---"] * len(heads)]
    for name, n, *ratios in rows:
        cells = [f"{ratio:.1f}" if ratio else "" for ratio in ratios]
        lines.append([name, str(n), *cells][: len(heads)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(text: str) -> None:
    """Put the table between its marks in the documentation."""
    page = DOCS.read_text("utf-8")
    marked = f"<!-- cost -->\n{text}\n<!-- /cost -->"
    DOCS.write_text(re.sub(r"<!-- cost -->.*?<!-- /cost -->", marked, page, flags=re.S), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captum", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    text = table(on_cpu(options.captum, options.repeats))
    print(text)
    if options.docs:
        write(text)


if __name__ == "__main__":
    main()
