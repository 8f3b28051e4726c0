"""What a decoder reads: a given target, shifted, or one that the model generates itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from normlens.checkpoints.hub import quiet_transformers
from normlens.errors import InputError
from normlens.memory_shortage import SMALLER, shortage_explained
from normlens.models.base import Adapter
from normlens.models.two_stacks import TwoStacks
from normlens.pairs import Pair
from normlens.text import Encoded
from normlens.text_sides import SideReader
from normlens.tracing.model_inputs import pair_inputs, without_autocast
from normlens.tracing.trace import reading
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens

#: How many tokens a model generates at most, unless its positions end before that.
MOST_GENERATED = 512
GENERATED = "generated"


def shifted(adapter: TwoStacks, labels: Encoded, tokenizer: Any) -> Encoded:
    """What the decoder reads in order to predict `labels`: its start token, then all but the last.

    The last label ends the target and is only ever predicted. Where a tokenizer ends a target with
    no special token, all of it is read.
    """
    ends = labels.special[-1] and len(labels) > 1
    kept = slice(0, len(labels) - 1 if ends else len(labels))
    start = adapter.start_token(labels.ids)
    has_start = adapter.target_has_start and labels.ids[0] == start
    before = [] if has_start else [start]
    words = labels.words
    return replace(
        labels,
        ids=[*before, *labels.ids[kept]],
        tokens=[*_tokens(before, tokenizer), *labels.tokens[kept]],
        special=[*[True] * len(before), *labels.special[kept]],
        words=None if words is None else [*[None] * len(before), *words[kept]],
        end=labels.ids[-1] if ends else None,
    )


def can_generate(adapter: Adapter) -> bool:
    """Whether a model has a head that makes a target of a source."""
    return bool(getattr(adapter.whole, "can_generate", lambda: False)())


@shortage_explained("generating a target", SMALLER)
def generated(lens: Lens, source: Encoded, features: torch.Tensor | None) -> Pair:
    """A source with the target that the model makes of it, always taking the likeliest token."""
    adapter, whole = lens.adapter, lens.adapter.whole
    assert isinstance(adapter, TwoStacks)
    if not can_generate(adapter):
        raise InputError(
            f"{type(whole).__name__} has no head that could generate a target; pass one "
            "(lens.maps(source, target), or decoder_input_ids=…), or load the model with its head"
        )
    limit = min(adapter.max_positions() or MOST_GENERATED, MOST_GENERATED)
    # A target of one token: only what belongs to the source is taken from it.
    inputs = pair_inputs(
        adapter, [Pair(source, source, features=features)], lens.device, lens.dtype
    )
    inputs = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": limit - 1}
    options |= adapter.generation_options(_example_labels(lens))

    def run() -> Any:
        with without_autocast(lens.device), reading(whole, adapter), quiet_transformers():
            return whole.generate(**inputs, **options)

    (ids,) = alone_with_model(whole, run).tolist()
    ends = whole.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    finished = len(ids) > 1 and ids[-1] in ends
    said = GENERATED if finished else f"{GENERATED}, cut at {len(ids)} tokens"
    target = _from_ids(ids[:-1] if finished else ids, lens)
    return Pair(source, replace(target, end=ids[-1] if finished else None), said, features)


def _from_ids(ids: list[int], lens: Lens) -> Encoded:
    """A generated target, with its words where the tokenizer gives the same ids to its text."""
    tokenizer: Any = lens.tokenizer
    adapter = lens.adapter
    assert isinstance(adapter, TwoStacks)
    if tokenizer is None:
        return Encoded(ids, [str(token) for token in ids], [False] * len(ids))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if text.strip():
        reader = SideReader(tokenizer, is_target=True)
        again = shifted(adapter, reader.read(text), tokenizer)
        if again.ids == ids:
            return again
    specials = set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)}
    special = [token in specials for token in ids]
    return Encoded(ids, _tokens(ids, tokenizer), special, text=text or None)


def _example_labels(lens: Lens) -> list[int] | None:
    """Some target as the tokenizer writes it, which shows the token of its language."""
    if lens.tokenizer is None:
        return None
    return SideReader(lens.tokenizer, is_target=True).read("a").ids


def _tokens(ids: list[int], tokenizer: Any) -> list[str]:
    if tokenizer is None:
        return [str(token) for token in ids]
    return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
