"""The example that a page opens on."""

from __future__ import annotations

from collections.abc import Iterable

from normlens.serve.jobs import Question
from normlens.serve.models import Description

TEXT = "She teaches soap opera history."


def example_of(models: Iterable[Description]) -> Question | None:
    """Ask for the maps of a short text, of the first model that needs nothing else for them.

    An encoder–decoder without a head cannot generate the target text that its maps are of.
    """
    for model in models:
        if not model.two_stacks or model.head is not None:
            return Question(model.name, TEXT)
    return None
