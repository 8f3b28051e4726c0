"""What it saves that an ablation does not run the layers before its own again.

Every layer's FF is ablated on one batch, once with the outputs of the intact pass's layers kept and
once with whole passes. The two are taken in turn in one run, and the losses must be equal to the
last bit:

    layers    layers that ran, of all that whole passes run
    time      with kept layers / whole passes

    python benchmarks/ablate.py          # MiniLM and SmolLM2 on a CPU
    python benchmarks/ablate.py --gpu    # a Llama 1B shape in bfloat16 on a GPU
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import normlens
from normlens.ablation.losses import choose_loss
from normlens.ablation.plan import Plan
from normlens.ablation.running import Runner

REPEATS = 2


def measure(lens: Any, batch: int, tokens: int) -> str:
    """One row of the table."""
    generator = torch.Generator().manual_seed(0)
    words = lens.adapter.config.vocab_size
    ids = torch.randint(10, words, (batch, tokens), generator=generator).tolist()
    loss = choose_loss(lens)
    questions = [loss.question(one, str(i)) for i, one in enumerate(lens.encode(input_ids=ids))]
    plan = Plan(lens.layers, lens.name)
    ablations = plan.ablations(components=["FF"], kinds=["zero"], together=False)
    runners = [Runner(lens, loss, ablations, keep=keep) for keep in (True, False)]
    first = [runner.run(questions) for runner in runners]  # warms up, and checks the first batch
    assert first[0] == first[1], "layers that were passed by changed a loss"
    assert runners[0].passes_by, "this model's layers cannot be passed by"
    best = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        for which, runner in enumerate(runners):
            start = time.perf_counter()
            runner.run(questions)
            best[which] = min(best[which], time.perf_counter() - start)
    share = runners[0].layers_run / (runners[0].layers_run + runners[0].layers_passed)
    return (
        f"| {lens.name} | {batch} × {tokens} | {len(ablations)} | {share:.2f} | "
        f"{best[0] / best[1]:.2f} | {best[0]:.2f} s | {best[1]:.2f} s |"
    )


def llama() -> Any:
    """A model of the shape of Llama 3.2 1B, with random weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return normlens.load(model.eval(), False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    chosen = parser.parse_args()
    print("| model | batch | ablations | layers | time | kept | whole |")
    print("|---|---|---|---|---|---|---|")
    if chosen.gpu:
        lens = llama()
        for batch in (1, 8, 32):
            print(measure(lens, batch, 128), flush=True)
        return
    print(measure(normlens.load("minilm", device="cpu"), 8, 64), flush=True)
    print(measure(normlens.load("smollm2", device="cpu"), 1, 64), flush=True)


if __name__ == "__main__":
    main()
