"""Links of a page to files of the repository that are no pages: their text stays, the link goes."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")


def without_outside_links(app: Sphinx, name: str, source: list[str]) -> None:
    if "/" not in name:  # in a folder below, ../ leads to another page
        source[0] = _OUTSIDE.sub(r"\1", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", without_outside_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
