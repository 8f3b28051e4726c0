"""Results files with any contents and checksums that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save_file

from normlens.results.files import sealed


def save_crafted(tensors: dict[str, NDArray[Any]], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a file as somebody would who wants it to be opened."""
    save_file(tensors, path, metadata=sealed(tensors, metadata))
