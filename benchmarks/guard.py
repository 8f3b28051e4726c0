"""What it costs to hold half precision to float32: the comparison beside one forward pass.

The comparison is made once, in the first call of `maps` and of `explain`. Both times are taken in
the same rounds on one machine, because only ratios of times that were measured together mean
anything; each is the best of its rounds.

    python benchmarks/guard.py [model ...]     # minilm and smollm2 by default
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

import normlens

TEXT = "She teaches soap opera history at the university, and nobody knows why."
ROUNDS = 15


def forward_seconds(lens: Any) -> float:
    """Seconds of one plain call of the model."""
    ids = torch.tensor([lens.encode(TEXT)[0].ids], device=lens.device)
    with torch.no_grad():
        began = time.perf_counter()
        lens.adapter.whole(input_ids=ids)
        return time.perf_counter() - began


def compared_seconds(lens: Any, call: str) -> float:
    """Seconds that a first call spends on comparisons."""
    lens.float32_check.compared.clear()
    if call == "maps":
        lens.maps(TEXT)
    elif hasattr(lens.adapter.whole, "lm_head"):
        lens.explain(TEXT)
    else:
        lens.explain(TEXT, direction=[1.0] * lens.layers[0].width, position=0)
    return sum(one.seconds for one in lens.float32_check.compared.values())


def main() -> None:
    for name in sys.argv[1:] or ("minilm", "smollm2"):
        lens = normlens.load(name, dtype="bfloat16")
        for call in ("maps", "explain"):
            rounds = [(forward_seconds(lens), compared_seconds(lens, call)) for _ in range(ROUNDS)]
            forward, compared = (min(times) for times in zip(*rounds, strict=True))
            print(
                f"{name:8} {call:8} comparison {1e3 * compared:6.1f} ms, forward pass "
                f"{1e3 * forward:6.1f} ms, ratio {compared / forward:.2f}"
            )


if __name__ == "__main__":
    main()
