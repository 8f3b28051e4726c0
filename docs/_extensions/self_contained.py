"""A site that works from disk: nothing that a page loads may come from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]+\"")


def check_pages(app: Sphinx, error: Exception | None) -> None:
    """Raise an error that names the first page that loads something from the network."""
    if error is not None or app.builder.format != "html":
        return
    for page in sorted(Path(app.outdir).rglob("*.html")):
        if "viewers" in page.parts:
            continue  # one file each, whose policy forbids the network
        if outside := _LOADED.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page} loads from the network: {outside[0]}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
