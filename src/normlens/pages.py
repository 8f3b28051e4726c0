"""Results as interactive pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normlens.errors import InputError


def write_page(result: Any, path: str | Path, *, overwrite: bool) -> Path:
    """Write the page of a result that has one."""
    page: Any = getattr(result, "to_html", None)
    if page is None:
        raise InputError(
            f"a {type(result).__name__} cannot be written as a page; give {str(path)!r} another "
            "ending"
        )
    return Path(page(path, overwrite=overwrite))
