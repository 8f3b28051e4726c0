"""Pegasus: BART's block with norms first."""

from __future__ import annotations

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register("pegasus", tiny=dict(TINY, decoder_start_token_id=1))
class Pegasus(Bart):
    norm_first = True
