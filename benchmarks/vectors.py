"""Maps with origin="input" beside n frozen forward passes of the same text, one after the other.

Both are timed in one run, in turns, and the quickest of each counts. A causal model computes the
targets from each source on, so that it should need about half.

    python benchmarks/vectors.py [--models minilm smollm2] [--tokens 32 128] [--repeats 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import normlens
from normlens.explain.network import FrozenNetwork
from normlens.frozen.layer import FrozenLayer
from normlens.trace.run import model_inputs, reading

PASSES = 4  # of the n frozen forward passes, which are all alike
LARGEST = {False: 1.5, True: 0.75}  # by whether the model is causal


def frozen_layers(lens: normlens.Lens, ids: list[int]) -> list[FrozenLayer]:
    """Every layer of the model, frozen at one text."""
    batch = lens.encode(input_ids=ids)
    network = FrozenNetwork(lens, batch, "ig", 1 << 40)
    with reading(lens.model, lens.adapter):
        network.forward(lens.model, model_inputs(lens.adapter, batch, lens.device))
        return [network.layer(index) for index in range(len(network))]


def one_source(layers: list[FrozenLayer]) -> Callable[[], None]:
    """One source through every layer, for as many sources as `PASSES`."""
    alone = torch.zeros_like(layers[0].x)
    alone[:, 0] = layers[0].x[:, 0]

    def work() -> None:
        for _ in range(PASSES):
            v = alone
            for layer in layers:
                v = layer.forward(v)

    return work


def quickest(works: list[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of the processor for each, the best of several turns: others may use it, too."""
    times = [float("inf")] * len(works)
    for _ in range(repeats):
        for place, work in enumerate(works):
            start = time.process_time()
            with torch.no_grad():
                work()
            times[place] = min(times[place], time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["minilm", "smollm2"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| model | tokens | n frozen passes | origin=input | ratio | at most | completeness |")
    print("|---|---|---|---|---|---|---|")
    for name in given.models:
        lens = normlens.load(name, device="cpu")
        for n in given.tokens:
            ids = torch.randint(1000, 20000, (n,)).tolist()
            maps = lens.maps(input_ids=ids, origin="input")

            def whole(ids: list[int] = ids, lens: normlens.Lens = lens) -> object:
                return lens.maps(input_ids=ids, origin="input")

            passes, took = quickest([one_source(frozen_layers(lens, ids)), whole], given.repeats)
            alone = passes / PASSES * n
            print(
                f"| {name} | {n} | {alone:.2f} s | {took:.2f} s | {took / alone:.2f} | "
                f"{LARGEST[lens.causal]} | {maps.completeness:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
