"""M2M-100 and NLLB: BART's block with norms first; a target begins with its language's token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.families.bart import Bart
from normlens.models.base import register
from normlens.models.parts import TINY


@register("m2m_100", tiny=TINY)
class M2M100(Bart):
    norm_first = True

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        return {} if labels is None else {"forced_bos_token_id": labels[0]}
