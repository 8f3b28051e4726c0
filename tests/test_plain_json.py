"""Any value as one that strict JSON can hold."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import numpy as np

from normlens.results.axes import plain


def test_numpy_and_what_is_not_finite() -> None:
    given = {
        1: (np.float32(0.5), np.int64(3), np.bool_(True), float("nan"), -np.float64("inf")),
        "array": np.array([[1.0, np.nan], [np.inf, 2.0]]),
        "flags": np.array([True, False]),
        "objects": np.array([np.float64("nan"), "a", None], dtype=object),
        "text": "ρ",
        "path": PurePosixPath("a/b"),
    }
    found = plain(given)
    assert found == {
        "1": [0.5, 3, True, None, None],
        "array": [[1.0, None], [None, 2.0]],
        "flags": [True, False],
        "objects": [None, "a", None],
        "text": "ρ",
        "path": "a/b",
    }
    assert type(found["1"][1]) is int
    assert json.loads(json.dumps(found, allow_nan=False)) == found
