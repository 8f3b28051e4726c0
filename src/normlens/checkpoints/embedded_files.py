"""Embedded models as transformers reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from normlens.checkpoints.embedded import EMBEDDED
from normlens.checkpoints.hub import quiet_transformers


def is_embedded(name: str) -> bool:
    """Whether a name is that of an embedded model."""
    # A model in a folder of that name comes first.
    return name in EMBEDDED and not (Path(name) / "config.json").is_file()


def file_beside(name: str, file: str) -> Path | None:
    """A file that lies beside an embedded model's weights, if there is one."""
    folder = EMBEDDED[name].folder()
    path = None if folder is None else (folder / EMBEDDED[name].weights).parent / file
    return path if path is not None and path.is_file() else None


def embedded_reader(name: str) -> Callable[..., Any]:
    """A function that has one of transformers' classes read an embedded model's files."""
    embedded = EMBEDDED[name]
    weights = embedded.locate()
    gguf = {"gguf_file": weights.name} if embedded.gguf else {}

    def read(kind: Any, **options: Any) -> Any:
        # Reading GGUF draws a progress bar that no setting turns off.
        with quiet_transformers(), redirect_stderr(StringIO()):
            return kind.from_pretrained(
                str(weights.parent), local_files_only=True, **gguf, **options
            )

    return read
