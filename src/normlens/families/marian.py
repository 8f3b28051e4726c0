"""Marian (OPUS-MT): BART's block; decoder and encoder may have vocabularies of their own."""

from __future__ import annotations

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register("marian", tiny=dict(TINY, decoder_start_token_id=1, activation_function="swish"))
class Marian(Bart):
    pass
