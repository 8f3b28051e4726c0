"""Explanations as the bytes that the viewer reads; the format is in ``viewer/CONTRACT.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.plain_json import plain
from normlens.results.explanation_words import RES
from normlens.viewer.container import Blobs, check_precision, joined
from normlens.viewer.token_fields import texts_of, token_fields

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation
    from normlens.results.explanations import Explanations

FORMAT = "normlens-viewer-explanations"
FORMAT_VERSION = 1
BITS = (32, 16)
#: The flow of a whole layer, among the flows of an explanation.
WHOLE = ""

#: Fields of an explanation that the header holds as they are.
_SAID = (
    "task",
    "question",
    "value",
    "remainder",
    "target",
    "target_value",
    "probability",
    "contrast",
    "contrast_value",
    "contrast_probability",
    "layer",
    "completeness",
    "biases",
)


def encode_explanations(
    explained: Explanation | Explanations | Sequence[Explanation],
    *,
    precision: int = 16,
    flow: bool = True,
    left_out: Iterable[str] = (),
) -> bytes:
    """Encode one or several explanations.

    Flow maps, the bulk, are kept in `precision` bits (see `Blobs.add_signed`), other arrays in
    float32. Without `flow` there are none. `left_out` are sentences about what is missing.
    """
    check_precision(precision, BITS)
    blobs = Blobs()
    sentences = list(left_out)
    items = [_item(why, blobs, precision, flow, sentences) for why in listed(explained)]
    return joined(FORMAT, FORMAT_VERSION, items, blobs)


def listed(explained: Explanation | Explanations | Sequence[Explanation]) -> list[Explanation]:
    """Make a list of one or several explanations; none, or something else, is an error."""
    several = list(explained) if isinstance(explained, Sequence) else [explained]
    if not several:
        raise InputError("there is no explanation to show; give at least one")
    for why in several:
        # Importing the class here would be a circle: explanations show themselves.
        if not hasattr(why, "contributions"):
            raise InputError(f"this page shows explanations, not {type(why).__name__}")
    return several


def flow_bytes(several: Sequence[Explanation]) -> int:
    """How many bytes the flow maps of explanations are in float32."""
    return sum(4 * why.flows[WHOLE].size for why in several if WHOLE in why.flows)


def _item(
    why: Explanation, blobs: Blobs, precision: int, flow: bool, left_out: list[str]
) -> dict[str, Any]:
    layers, heads = why.heads.shape[:2]
    whole = why.flows.get(WHOLE) if flow else None
    end = why.seen  # the target's tokens behind the prefix carry nothing
    cross = why.cross_heads
    blocks = [place for place, name in enumerate(why.component_names) if name != RES]
    return {
        "model": str(why.provenance.get("model", "model")),
        "text": texts_of(why.text),
        **token_fields(why.axis.take(range(end))),
        **{name: plain(getattr(why, name)) for name in _SAID},
        "position": why.read_at,
        "sequences": _sequences(why),
        "layers": layers,
        "heads_per_layer": heads,
        "provenance": plain(why.provenance),
        "nodes": blobs.add_floats(why.nodes[:, :end]),
        "component_names": [why.component_names[place] for place in blocks],
        "components": blobs.add_floats(why.components[:, blocks, :end]),
        "heads": blobs.add_floats(why.heads[..., :end]),
        "cross_heads": None if cross is None else blobs.add_floats(cross[..., :end]),
        "flow": None
        if whole is None
        else [blobs.add_signed(part[:end, :end], precision) for part in whole],
        "precision": {"bits": precision},
        "left_out": [*left_out, *_missing(why)],
    }


def _sequences(why: Explanation) -> dict[str, Any] | None:
    """Which tokens and layers are whose, and what each sequence supplies, if there are two."""
    if not why.has_two_sequences:
        return None
    return {
        "source_tokens": why.encoder_tokens,
        "encoder_layers": why.encoder_layers,
        "shares": plain(asdict(why.shares)),
    }


def _missing(why: Explanation) -> list[str]:
    """Sentences about what an explanation has that the page does not show, or lacks."""
    sentences = []
    if WHOLE not in why.flows:
        sentences.append(
            "This explanation was made without flow maps, so the way through the layers is not "
            "shown; ask for flow=True."
        )
    if set(why.flows) - {WHOLE}:
        sentences.append("Flow maps behind scopes are left out.")
    if why.head_flow is not None:
        sentences.append("Flow maps by head are left out.")
    return sentences
