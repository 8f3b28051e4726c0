"""Blenderbot: BART's block with norms first."""

from __future__ import annotations

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register("blenderbot", tiny=TINY)
class Blenderbot(Bart):
    norm_first = True
