"""Blenderbot: BART's block with norms first."""

from __future__ import annotations

from normlens.models.base import register
from normlens.models.families.bart import Bart
from normlens.models.two_stacks import TINY


@register("blenderbot", tiny=TINY)
class Blenderbot(Bart):
    norm_first = True
