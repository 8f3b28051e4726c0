"""What cannot hold the maps of two stacks yet says so instead of losing one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.results.labelled import LabelledMaps


def check_one_stack(maps: LabelledMaps, what: str) -> None:
    """Raise for maps of an encoder–decoder that bring both stacks; `what` holds only one."""
    if maps.encoder is not None:
        raise InputError(
            f"{what} holds the maps of one stack, and these are an encoder–decoder's; take "
            "maps.decoder and maps.encoder one by one"
        )
