"""Published error rates, in per cent, and a run's best ones beside them."""

from __future__ import annotations

import pandas as pd

from normlens.alignment.options import INPUT, OUTPUT
from normlens.reports.published import Comparison, Published

_PAPER = "Kobayashi et al. 2020, section 5"
_MODEL = "a German–English Transformer"
_DATA = "German–English pairs"
_ALIGNERS = "statistical aligners"
_HANSARDS = "the 447 English–French pairs of the Hansards"

#: Scope, way, AER of the best layer.
_PAPERS_RATES = (
    ("CROSS-W", INPUT, 29.8),
    ("CROSS-N", INPUT, 25.0),
    ("CROSS-W", OUTPUT, 47.7),
    ("CROSS-N", OUTPUT, 41.4),
)
_ALIGNERS_RATES = (("fast_align", 10.5), ("eflomal", 8.2))
_NAMES = {"CROSS-W": "weights", "CROSS-N": "norms"}
_WAYS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}


def comparisons(rates: pd.DataFrame) -> list[Comparison]:
    """The paper's rates beside those of the same scope's best layer, and statistical aligners'.

    All of them are of another model, and the paper's also of other data.
    """
    found = []
    for scope, way, value in _PAPERS_RATES:
        here = rates[(rates["scope"] == scope) & (rates["way"] == way) & (rates["head"] < 0)]
        published = Published(
            key=f"alignment/{scope}/{way}",
            label=f"AER {_WAYS[way]}, {_NAMES[scope]}, best layer",
            value=value,
            model=_MODEL,
            data="de-en",
            data_label=_DATA,
            source=_PAPER,
            digits=1,
        )
        found.append(Comparison(published, _lowest(here), same=False))
    for name, value in _ALIGNERS_RATES:
        published = Published(
            key=f"alignment/{name}",
            label=f"AER of {name}; measured: the best map",
            value=value,
            model=_ALIGNERS,
            data="hansards",
            data_label=_HANSARDS,
            source="Aligners that learn from parallel text and need no translation model",
            digits=1,
        )
        found.append(Comparison(published, _lowest(rates), same=False))
    return found


def _lowest(rates: pd.DataFrame) -> float | None:
    """The lowest error rate in per cent; None where there is none."""
    return None if rates.empty else 100 * float(rates["aer"].min())
