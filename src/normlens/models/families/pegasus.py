"""Pegasus: BART's block with norms first."""

from __future__ import annotations

from normlens.models.base import register
from normlens.models.families.bart import Bart
from normlens.models.two_stacks import TINY


@register("pegasus", tiny=dict(TINY, decoder_start_token_id=1))
class Pegasus(Bart):
    norm_first = True
