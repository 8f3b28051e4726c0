"""What a command needs beside the core, by its options; checked before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normlens.checkpoints.embedded import DEFAULT, EMBEDDED
from normlens.checkpoints.embedded_files import is_embedded
from normlens.extras import IMAGES, PICTURES, RAY, Need, check_installed, missing

#: Endings of the files that Matplotlib writes.
_DRAWN = (".png", ".svg", ".pdf")


def check_result_needs(model: str | None, out: Path | None, image: Path | None = None) -> None:
    """Raise now for packages that a result's model, its file or its input will need."""
    needs = list(_of_model(model or DEFAULT))
    if out is not None and out.suffix.lower() in _DRAWN:
        needs.append(PICTURES)
    if image is not None:
        needs.append(IMAGES)
    check_installed(*needs)


def check_run_needs(
    model: str | None,
    execution: Mapping[str, Any],
    *results: Need,
    extra: str | None = None,
    instead: str = "",
) -> None:
    """Raise now for packages that a run's model, its engine or its `results` will need.

    `instead` says how to do without the packages of the results.
    """
    needs = list(() if model is None else _of_model(model))
    if execution.get("engine") == "ray":
        needs.append(RAY)
    check_installed(*needs, *results, extra=extra, instead="" if missing(needs) else instead)


def _of_model(name: str) -> Iterator[Need]:
    """What reading an embedded model's weights needs; one that is not there says so by itself."""
    if is_embedded(name) and EMBEDDED[name].installed:
        yield Need(f"the embedded model {name!r} needs", EMBEDDED[name].extras)
