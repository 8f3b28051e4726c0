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
from normlens.studies.faithfulness.protocols import ORDER, TABLES, tables_of

#: Mean values: normlens leads clearly.
METHODS = {
    **{"normlens": 0.54, "integrated-gradients": 0.46, "alti": 0.40, "globenc": 0.31},
    **{"rollout-weights": 0.27, "gradient-x-input": 0.25, "leave-one-out": 0.45, "vectors": 0.34},
    **{"first-token": 0.22, "random": 0.195},
}
SHARES = {"evidence": (), "aopc": [k / 10 for k in range(10)]}


@dataclass(frozen=True)
class MadeUp(ModelMeasure, BoundMeasure):
    """Faithfulness as a run's tables hold it, drawn by chance around given means."""

    methods: Mapping[str, float] = field(default_factory=lambda: METHODS)
    protocols: Sequence[str] = ("aopc", "sufficiency", "evidence")
    noise: float = 0.05
    token: str | None = None  # in the place of every second token
    only: int | None = None  # examples that have a value
    name: str = "made-up"
    tables = TABLES
    order = ORDER
    needs = Needs(scopes=(), arrays=False)

    def bind(self, lens: Any, batch_size: int | str) -> BoundMeasure:
        return self

    def batch_rows(self, items: Sequence[Item], clock: Any) -> list[dict[str, pa.Table] | str]:
        for stage in ("intact", *(f"method {name}" for name in self.methods)):
            with clock.on(stage):
                time.sleep(0.0005)
        return [self._tables(item) for item in items]

    def _tables(self, item: Item) -> dict[str, pa.Table]:
        encoded, chance = item.encoded, np.random.default_rng(item.index)
        whole, ordinary = 0.9 + 0.1 * chance.random(), len(encoded) - sum(encoded.special)
        example = dict(tokens=len(encoded), ordinary=ordinary, target_id=1, target="good")
        example |= dict(contrast_id=0, contrast="bad", score=2.0, probability=whole)
        example |= dict(label="good", correct=bool(chance.random() < 0.9))
        passes, attributions, values, removals = [], [], [], []
        for place, (method, mean) in enumerate(self.methods.items()):
            passes.append(dict(method=method, forward=place, backward=place % 2))
            for position, token in enumerate(encoded.tokens):
                special = encoded.special[position]
                shown = self.token if self.token and position % 2 and not special else token
                row = dict(method=method, position=position, token=shown, ordinary=not special)
                attributions.append({**row, "score": chance.normal(mean, 0.5)})
            for protocol in self.protocols:
                turned = protocol in ("evidence", "sufficiency")
                for first in ("most",) if turned else ("most", "least"):
                    value = mean if first == "most" else 0.2 * (0.6 - mean)
                    value = 1 - mean if protocol == "sufficiency" else value
                    value += self.noise * chance.normal()
                    absent = self.only is not None and item.index >= self.only
                    shared = dict(protocol=protocol, method=method, first=first)
                    values.append({**shared, "value": None if absent else value})
                    for share in SHARES.get(protocol, (0.01, 0.05, 0.1, 0.2, 0.5)):
                        drop = value * np.sqrt(share) * 1.5
                        row = dict(share=share, removed=int(10 * share), score=2 - 4 * drop)
                        row |= dict(probability=np.clip(whole - drop, 0, 1), correct=drop < 0.5)
                        removals.append(shared | row)
        return tables_of(
            item,
            examples=[example],
            method_passes=passes,
            attributions=attributions,
            faithfulness=values,
            removals=removals,
        )


def made_up_run(folder: Path, sequences: int = 24, **options: Any) -> Run:
    """Do a run over lines of letters with a tiny random model."""
    data = examples.corpus_file(folder / "letters.txt", sequences)
    model = str(examples.tiny_checkpoint(folder / "tiny-bert"))
    return run(model, data, folder / "run", measures=[MadeUp(**options)], block_size=16)
