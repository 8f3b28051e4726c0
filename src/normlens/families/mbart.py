"""mBART: BART's block with norms first; the language's token starts a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register("mbart", tiny=TINY)
class MBart(Bart):
    norm_first = True

    def start_token(self, labels: Sequence[int]) -> int:
        # The last label goes round to the front: mBART 50 ends with </s>, the first mBART with the
        # language.
        return labels[-1]

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        if labels is None:
            return {}
        first, last = labels[0], labels[-1]
        if last == self.config.eos_token_id:
            return {"decoder_start_token_id": last, "forced_bos_token_id": first}
        return {"decoder_start_token_id": last, "forced_bos_token_id": None}
