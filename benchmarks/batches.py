"""What a batch changes: each sequence's maps beside others, against its maps alone, on a CPU.

Padding and other shapes of the same products change the order of sums, and so their last digits.
For the embedded model and the embedded sentences this prints, over all entries of all maps,

    of the map    the largest difference ÷ the largest entry of the same map and layer
    of the entry  the largest difference ÷ the entry itself, for entries from so small a share on

    python benchmarks/batches.py
"""

from __future__ import annotations

import argparse

import numpy as np

SHARES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)  # of the map's largest entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--sizes", default="4,16,64", help="batch sizes")
    parser.add_argument("--texts", type=int, default=64)
    options = parser.parse_args()

    import normlens
    from normlens.corpus import open_data

    lens = normlens.load(options.model, device="cpu")
    texts = [" ".join(record.words or ()) for record in open_data("sample")][: options.texts]
    alone = lens.maps(texts, batch_size=1)
    print("| batch | of the map | " + " | ".join(f"of an entry ≥ {s:g}" for s in SHARES) + " |")
    print("|---" * (2 + len(SHARES)) + "|")
    for size in map(int, options.sizes.split(",")):
        whole, single = 0.0, dict.fromkeys(SHARES, 0.0)
        for found, expected in zip(lens.maps(texts, batch_size=size), alone, strict=True):
            for scope in expected.scopes:
                a, b = found[scope].astype(float), expected[scope].astype(float)
                largest = b.max(axis=(1, 2), keepdims=True)
                whole = max(whole, float((np.abs(a - b) / largest).max()))
                for share in SHARES:
                    seen = b >= share * largest
                    single[share] = max(single[share], float((np.abs(a - b)[seen] / b[seen]).max()))
        print(f"| {size} | {whole:.1e} | " + " | ".join(f"{v:.1e}" for v in single.values()) + " |")


if __name__ == "__main__":
    main()
