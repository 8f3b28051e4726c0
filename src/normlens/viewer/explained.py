"""Explanations to look at: as one HTML file, and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.viewer import page
from normlens.viewer.explanation_payload import encode_explanations, flow_bytes, listed
from normlens.viewer.html import EXACT, LARGEST, check_page, room_of, title, write_page
from normlens.viewer.notebook import Notebook

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation
    from normlens.results.explanations import Explanations


def explanation_html(
    explained: Explanation | Explanations | Sequence[Explanation],
    path: str | Path,
    *,
    largest: float | None = LARGEST,
    overwrite: bool | None = None,
) -> Path:
    """Write one self-contained HTML file; several explanations can be chosen from in it.

    A file that would be larger than `largest` MB leaves out the flow maps, and says so; None keeps
    everything.
    """
    check_page(path, overwrite=overwrite)
    several = listed(explained)
    document = page.standalone(fitted(several, largest), _title(several))
    return write_page(document, path, overwrite=overwrite)


def notebook(
    explained: Explanation | Explanations | Sequence[Explanation], state: Mapping[str, Any]
) -> Notebook:
    """What a notebook shows for explanations; `state` in the words of the page's address."""
    several = listed(explained)
    return Notebook(
        lambda largest: fitted(several, largest),
        _title(several),
        "why.to_html('why.html')",
        {name: str(value) for name, value in state.items()},
        several[0].plot,
    )


def fitted(several: Sequence[Explanation], largest: float | None) -> bytes:
    """Encode explanations with their flow maps, or without where a page would be too large."""
    data = encode_explanations(several, precision=32 if flow_bytes(several) <= EXACT else 16)
    if largest is None or len(data) <= room_of(largest):
        return data
    note = (
        "Flow maps are left out, so the way through the layers is not shown: with them this file "
        f"would be larger than {largest:g} MB."
    )
    data = encode_explanations(several, flow=False, left_out=[note])
    if len(data) > room_of(largest):
        raise InputError(
            f"these explanations are larger than {largest:g} MB even without flow maps; give fewer "
            "of them, or largest=None"
        )
    return data


def _title(several: Sequence[Explanation]) -> str:
    questions = [several[0].question, f"and {len(several) - 1} more"][: len(several)]
    models = [str(why.provenance.get("model", "")) for why in several]
    return title(" ".join(questions), models)
