"""Reports without the pictures, which take most of their time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from normlens.studies.reports import files
from normlens.studies.reports.contents import Figure

#: Files of pictures that nobody has rendered.
EMPTY = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt"/>',
    "png": b"",
}


@contextmanager
def rendering_nothing() -> Iterator[None]:
    """Figures are drawn, and their files are empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_saved", lambda _, kind, **options: EMPTY[kind])
        yield


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Figures are not drawn, and their files are empty."""
    with rendering_nothing(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "draw", lambda _: None)
        yield
