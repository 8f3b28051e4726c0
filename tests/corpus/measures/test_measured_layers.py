"""Measures of models whose layers differ: rows name the layers that have what is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from unlike_examples import _own_registry, unlike  # noqa: F401

import normlens
from normlens.corpus.measures import Item, get
from normlens.options import AnalysisOptions

IDS = [3, 9, 27, 14, 5, 33, 8]
KINDS = "post bare parallel plain post"


def items() -> tuple[Item, dict[int, Item]]:
    """One sequence with all layers, and with each layer alone."""
    lens = normlens.load(unlike(KINDS))
    (encoded,) = lens.encode(input_ids=IDS)

    def item(layers: list[int] | None) -> Item:
        options = AnalysisOptions(statistics=True, layers=layers)
        (maps,) = lens.analyse([encoded], options, correlations=True)
        return Item("text-0", 0, maps, encoded)

    return item(None), {layer: item([layer]) for layer in range(lens.n_layers)}


def keyed(table) -> list[tuple]:
    """Rows in one order, numbers as text of few digits: sums may differ in their last."""
    rows = table.to_pylist()
    return sorted(
        tuple(f"{v:.9g}" if isinstance(v, float) else str(v) for v in row.values()) for row in rows
    )


@pytest.mark.parametrize("measure", ["similarity", "mixing", "amplification", "norms"])
def test_rows_are_those_of_each_layer_alone(measure):
    """Nothing is measured of a layer that it does not have, and nothing under another's number."""
    together, alone = items()
    tables = get(measure).rows(together)
    apart = [get(measure).rows(item) for item in alone.values()]
    assert any(len(table) for table in tables.values())
    if measure == "amplification":  # alone, layer 1 is a whole layer whose last norm is compared
        del apart[1]
    for name, table in tables.items():
        assert keyed(table) == sorted(row for one in apart for row in keyed(one[name])), name


def test_layers_of_each_table():
    together, _ = items()
    maps = together.maps
    layers = {
        name: sorted(set(table["layer"].to_pylist()))
        for measure in ("similarity", "mixing", "amplification", "norms")
        for name, table in get(measure).rows(together).items()
    }
    assert layers == {
        "similarity": [0, 1, 2, 3, 4],
        "mixing": [0, 1, 2, 3, 4],
        "amplification_pairs": [0, 3, 4],
        "amplification_distance": [0, 3, 4],
        "amplification_sample": [0, 3, 4],
        "norms": [0, 3, 4],
        "norms_dimensions": [0, 3, 4],
        "special_dimensions": [0, 4],  # layer 3 has no norm behind its block
    }
    assert maps.layers_of("ATTNRESFF-N") == [3]


def test_similarity_has_the_pairs_of_scopes_that_a_layer_has():
    """Ranked on the device, on the CPU, or on the device without the maps themselves."""
    together, _ = items()
    maps = together.maps
    bare = replace(maps, arrays={}, coverage={
        name: layers for name, layers in maps.coverage.items() if not name.startswith("arrays/")
    })  # fmt: skip
    expected = {
        (layer, a, b)
        for layer in maps.layers
        for k, a in enumerate(maps.scopes)
        for b in maps.scopes[k + 1 :]
        if layer in maps.layers_of(a, b)
    }
    for some in (maps, replace(maps, correlations=None), bare):
        rows = get("similarity").rows(replace(together, maps=some))["similarity"].to_pylist()
        assert {(row["layer"], row["scope_a"], row["scope_b"]) for row in rows} == expected
        assert len(rows) == len(expected)
        assert all(row["rho"] is not None and np.isfinite(row["rho"]) for row in rows)
