"""Heads by weights and by norms, one by one and over a corpus; heads in one's own measures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from run_examples import tiny_checkpoint
from scipy.stats import spearmanr

import normlens

TEXTS = ["ab cd e", "a bad cab fed a bee", "e"]
MINE = """
from normlens.corpus.measures import measure

@measure(schema={"layer": int, "head": int, "most": float}, heads=True, scopes=("ATTN-N",))
def strongest(maps):
    most = maps.heads["ATTN-N"].max((2, 3))
    layer, head = np.indices(most.shape)
    return {"layer": layer.ravel(), "head": head.ravel(), "most": most.ravel().astype(float)}

import numpy as np
"""


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_heads_over_a_corpus(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(tiny_checkpoint(tmp_path / "model", model_type=family))
    (tmp_path / "my_heads.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    chosen = "heads,my_heads:strongest"
    try:
        options = {"measures": chosen, "device": "cpu", "workers": 1}
        done = normlens.run(model, tmp_path / "texts.txt", tmp_path / "run", **options)
    finally:
        sys.modules.pop("my_heads", None)
    table, mine = done.table("heads"), done.table("strongest")
    lens = normlens.load(model, device="cpu")
    for index, text in enumerate(TEXTS):
        (maps,) = lens.maps([text], heads=True)
        for layer, head in np.ndindex(maps.heads["ATTN-N"].shape[:2]):
            allowed = maps.allowed[layer]
            weights, norms = (maps.heads[f"ATTN-{kind}"][layer, head][allowed] for kind in "WN")
            here = (table["index"] == index) & (table["layer"] == layer) & (table["head"] == head)
            row = table[here].iloc[0]
            assert row["rho"] == pytest.approx(spearmanr(weights, norms).statistic, abs=1e-9)
            assert row["norm"] == pytest.approx(norms.mean(dtype=float), rel=1e-6)
            own = mine[(mine["index"] == index) & (mine["layer"] == layer) & (mine["head"] == head)]
            assert own["most"].item() == pytest.approx(norms.max(), rel=1e-6)
    by_head = done.sql("SELECT layer, head, avg(rho) AS rho FROM heads GROUP BY ALL ORDER BY rho")
    assert len(by_head) == len(maps.layers) * maps.heads["ATTN-N"].shape[1]
