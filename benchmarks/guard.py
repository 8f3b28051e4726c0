"""What it costs to hold half precision to float32: the comparison beside one forward pass.

The comparison is made once, in the first call of `maps` and of `explain`. Both times are taken in
the same rounds on one machine, because only ratios of times that were measured together mean
anything; each is the best of its rounds. The modules that run again do so in float32, so one pass
of the same model in float32 stands beside that of half precision.

    python benchmarks/guard.py [model ...]     # minilm and smollm2 by default
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import torch

import normlens

TEXT = "She teaches soap opera history at the university, and nobody knows why. "
REPEATS = (1, 4, 16)
ROUNDS = 15


def forward_seconds(lens: Any, text: str) -> float:
    """Seconds of one plain call of the model."""
    ids = torch.tensor([lens.encode(text)[0].ids], device=lens.device)
    with torch.no_grad():
        began = time.perf_counter()
        lens.adapter.whole(input_ids=ids)
        return time.perf_counter() - began


def compared_seconds(lens: Any, call: str, text: str) -> float:
    """Seconds that a first call spends on comparisons."""
    lens.float32_check.compared.clear()
    if call == "maps":
        lens.maps(text)
    elif hasattr(lens.adapter.whole, "lm_head"):
        lens.explain(text)
    else:
        lens.explain(text, direction=[1.0] * lens.layers[0].width, position=0)
    return sum(one.seconds for one in lens.float32_check.compared.values())


def main() -> None:
    for name in sys.argv[1:] or ("minilm", "smollm2"):
        half, single = (normlens.load(name, dtype=dtype) for dtype in ("bfloat16", "float32"))
        for call, repeats in itertools.product(("maps", "explain"), REPEATS):
            text = TEXT * repeats
            rounds = [
                (
                    compared_seconds(half, call, text),
                    forward_seconds(half, text),
                    forward_seconds(single, text),
                )
                for _ in range(ROUNDS)
            ]
            compared, forward, wide = (min(times) for times in zip(*rounds, strict=True))
            print(
                f"{name:8} {call:8} {len(half.encode(text)[0].ids):4} tokens: comparison ÷ forward "
                f"pass {compared / forward:.2f}, ÷ forward pass in float32 {compared / wide:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
