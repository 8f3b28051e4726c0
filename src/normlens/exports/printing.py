"""Figures as files that print well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RESOLUTION = 200  # pixels per inch


def save_pages(drawn: Iterable[Figure], path: str | Path, title: str) -> None:
    """Write figures as the pages of one PDF; the same figures give the same bytes."""
    from matplotlib.backends.backend_pdf import PdfPages

    with _for_print(), PdfPages(path, metadata={"Title": title, "CreationDate": None}) as pages:
        for figure in drawn:
            pages.savefig(figure, dpi=_RESOLUTION)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in a form that prints well; the same figure gives the same bytes."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with _for_print():
        figure.savefig(path, dpi=_RESOLUTION, metadata=undated.get(Path(path).suffix.lower()))


@contextmanager
def _for_print() -> Iterator[None]:
    """Use fonts that publishers accept (TrueType, not Type 3) and reproducible names."""
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "normlens"}):
        yield
