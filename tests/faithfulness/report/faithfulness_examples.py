"""Runs with made-up faithfulness: a measure that needs no method and no protocol."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.append(str(Path(__file__).parents[2] / "corpus"))

import run_examples as examples

from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import run
from normlens.studies.faithfulness.measure import ORDER, TABLES

#: Mean values: normlens leads clearly.
METHODS = {
    "normlens": 0.54,
    "integrated-gradients": 0.46,
    "alti": 0.40,
    "globenc": 0.31,
    "rollout-weights": 0.27,
    "gradient-x-input": 0.25,
    "leave-one-out": 0.45,
    "vectors": 0.34,
    "first-token": 0.22,
    "random": 0.195,
}
SHARES = [k / 10 for k in range(10)]


@dataclass(frozen=True)
class MadeUp(ModelMeasure):
    """Faithfulness as a run's tables hold it, drawn by chance around given means."""

    methods: Mapping[str, float] = field(default_factory=lambda: METHODS)
    protocols: Sequence[str] = ("aopc", "sufficiency", "evidence")
    labels: bool = True
    noise: float = 0.05
    probabilities: bool = True
    token: str | None = None  # in the place of every second token
    only: int | None = None  # examples that have a value
    name: str = "made-up"
    tables = TABLES
    order = ORDER
    needs = Needs(scopes=(), arrays=False)

    def bind(self, lens: Any, batch_size: int | str) -> BoundMeasure:
        return _Bound(self)


@dataclass(frozen=True)
class _Bound(BoundMeasure):
    of: MadeUp

    def batch_rows(self, items: Sequence[Item], clock: Any) -> list[dict[str, pa.Table] | str]:
        for stage in ("intact", *(f"method {name}" for name in self.of.methods)):
            with clock.on(stage):
                time.sleep(0.0005)
        return [self._rows(item) for item in items]

    def _rows(self, item: Item) -> dict[str, pa.Table]:
        made, encoded = self.of, item.encoded
        chance = np.random.default_rng(item.index)
        key = {"index": item.index, "sequence": item.sequence}
        whole = 0.9 + 0.1 * chance.random()
        correct = bool(chance.random() < 0.9)
        ordinary = sum(not special for special in encoded.special)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        labelled = {"label": "good", "correct": correct} if made.labels else {}
        rows["examples"].append(
            key
            | {"tokens": len(encoded), "ordinary": ordinary, "target_id": 1, "target": "good"}
            | {"contrast_id": 0, "contrast": "bad", "score": 2.0}
            | ({"probability": whole} if made.probabilities else {})
            | labelled
        )
        for place, (method, mean) in enumerate(made.methods.items()):
            forward, backward = (0, 0) if method in ("random", "first-token") else (1 + place, 1)
            if method == "leave-one-out":
                forward, backward = ordinary, 0
            rows["method_passes"].append(
                key | {"method": method, "forward": forward, "backward": backward}
            )
            scores = chance.normal(mean, 0.5, len(encoded))
            for position, (token, special) in enumerate(
                zip(encoded.tokens, encoded.special, strict=True)
            ):
                shown = made.token if made.token and position % 2 and not special else token
                rows["attributions"].append(
                    key
                    | {"method": method, "position": position, "token": shown}
                    | {"ordinary": not special, "score": scores[position]}
                )
            for protocol in made.protocols:
                self._protocol(rows, key, protocol, method, mean, item.index, chance, whole)
        return {
            name: pa.Table.from_pylist(some, schema=TABLES[name]) for name, some in rows.items()
        }

    def _protocol(
        self,
        rows: dict[str, list[dict[str, Any]]],
        key: dict[str, Any],
        protocol: str,
        method: str,
        mean: float,
        index: int,
        chance: np.random.Generator,
        whole: float,
    ) -> None:
        made = self.of
        for first in ("most",) if protocol in ("evidence", "sufficiency") else ("most", "least"):
            value = mean if first == "most" else 0.2 * (0.6 - mean)
            value = 1 - mean if protocol == "sufficiency" else value
            value += made.noise * chance.normal()
            shared = key | {"protocol": protocol, "method": method, "first": first}
            absent = made.only is not None and index >= made.only
            rows["faithfulness"].append(shared | {"value": None if absent else value})
            if protocol == "evidence":
                continue
            for share in SHARES if protocol == "aopc" else (0.01, 0.05, 0.1, 0.2, 0.5):
                drop = value * np.sqrt(share) * 1.5
                row = {"share": share, "removed": int(10 * share), "score": 2 - 4 * drop}
                if made.probabilities:
                    row |= {"probability": float(np.clip(whole - drop, 0, 1))}
                row |= {"correct": bool(drop < 0.5)} if made.labels else {}
                rows["removals"].append(shared | row)


def made_up_run(folder: Path, sequences: int = 24, lens: Any = None, **options: Any) -> Run:
    """Do a run over lines of letters with a tiny random model."""
    data = examples.corpus_file(folder / "letters.txt", sequences)
    model = lens or str(examples.tiny_checkpoint(folder / "tiny-bert"))
    return run(model, data, folder / "run", measures=[MadeUp(**options)], block_size=16)
