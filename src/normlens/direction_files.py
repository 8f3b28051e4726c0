"""Directions from files: vectors that a score is read along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, reason_of, system_reason
from normlens.json_text import parse_json

FORMATS = (".npy", ".json", ".txt")


def read_direction(path: Path) -> NDArray[np.float64]:
    """A vector from a NumPy file, a JSON list, or numbers that spaces and lines separate."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--direction takes a {', '.join(FORMATS)} file, not {str(path)!r}")
    try:
        return np.asarray(_values(path), dtype=np.float64)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {system_reason(error)}") from error
    except (ValueError, TypeError, EOFError, MemoryError, json.JSONDecodeError) as error:
        raise InputError(
            f"{str(path)!r} holds no vector of numbers ({reason_of(error)})"
        ) from error


def _values(path: Path) -> Any:
    if path.suffix.lower() == ".npy":
        return np.load(path, allow_pickle=False)
    text = path.read_text("utf-8")
    return parse_json(text) if path.suffix.lower() == ".json" else text.split()
