"""Cosines of two texts to look at: as one HTML file, and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.viewer import page
from normlens.viewer.cosine_payload import encode_cosines, listed
from normlens.viewer.html import LARGEST, check_page, room_of, title, write_page
from normlens.viewer.notebook import Notebook

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine


def cosine_html(
    compared: Cosine | Sequence[Cosine],
    path: str | Path,
    *,
    largest: float | None = LARGEST,
    overwrite: bool | None = None,
) -> Path:
    """Write one self-contained HTML file; several cosines can be chosen from in it.

    More than fits into `largest` MB is an error; None writes whatever it is.
    """
    check_page(path, overwrite=overwrite)
    several = listed(compared)
    document = page.standalone(fitted(several, largest), _title(several))
    return write_page(document, path, overwrite=overwrite)


def notebook(compared: Cosine | Sequence[Cosine], state: Mapping[str, Any]) -> Notebook:
    """What a notebook shows for cosines; `state` in the words of the page's address."""
    several = listed(compared)
    return Notebook(
        lambda largest: fitted(several, largest),
        _title(several),
        "pair.to_html('pair.html')",
        {name: str(value) for name, value in state.items()},
        several[0].plot,
    )


def fitted(several: Sequence[Cosine], largest: float | None) -> bytes:
    """Encode cosines, or raise an error where a page would be too large."""
    data = encode_cosines(several)
    if largest is not None and len(data) > room_of(largest):
        raise InputError(f"these cosines are larger than {largest:g} MB; give fewer of them")
    return data


def _title(several: Sequence[Cosine]) -> str:
    texts = " / ".join(filter(None, (several[0].text_a, several[0].text_b)))
    return title(texts, [str(pair.provenance.get("model", "")) for pair in several])
