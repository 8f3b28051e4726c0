"""Padding that came with token ids and was left out: whether the model itself computes the same.

Padding in front of a text shifts positions in models that count them from the first column, such as
BERT and GPT-2; it shifts nothing in those that count from the mask (OPT, RoBERTa) or whose
positions are relative (most models with rotary embeddings). What lies between (frequencies that
depend on the length, chunks, convolutions) depends on the text, so the model is asked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normlens.errors import NormLensWarning, is_out_of_memory
from normlens.inputs.text import Encoded, Item, Pair
from normlens.models.parts import TwoStacks
from normlens.options import HALF
from normlens.trace.locking import alone_with_model
from normlens.trace.patches import plain_options
from normlens.trace.run import model_inputs, pair_inputs, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens

#: How far vectors may differ relatively by rounding; in half precision ten times its completeness.
_ROUNDING = 1e-3
#: What a model returns that is compared, as far as it is there.
_COMPARED = ("last_hidden_state", "encoder_last_hidden_state", "logits")


def warn_of_padding(lens: Lens, items: Sequence[Item]) -> None:
    """Warn if the model gives other vectors with the padding that was left out of `items`.

    One of them, the one with most padding, is run with it and without it.
    """
    item = max(items, key=lambda item: sum(map(len, _paddings(lens, item))), default=None)
    if item is None or not any(_paddings(lens, item)) or not _is_runnable(lens, item):
        return
    difference = _difference(lens, item)
    dtype = str(lens.dtype).removeprefix("torch.")
    if difference <= 10 * HALF.get(dtype, _ROUNDING / 10):
        return
    size = f"{difference:.2g} of their norm" if math.isfinite(difference) else "NaN"
    warnings.warn(
        f"called with these input_ids and this attention_mask, {lens.name} itself gives other "
        f"vectors (the largest difference is {size}), because padding shifts its positions or "
        "reaches its tokens; NormLens leaves padding out and counts from the first token: pad on "
        "the right, or give the model position_ids that do so, to compare the two",
        NormLensWarning,
        stacklevel=2,
    )


def _paddings(lens: Lens, item: Item) -> list[list[int]]:
    """The padding of each sequence that may change what the model makes of its tokens."""
    sides = (item.source, item.target) if isinstance(item, Pair) else (item,)
    return [
        [*side.padding[0], *(side.padding[1] if lens.adapter.padding_leaks else ())]
        for side in sides
    ]


def _is_runnable(lens: Lens, item: Item) -> bool:
    """Whether the model takes the padded ids at all; where it does not, there is nothing else."""
    adapter = lens.adapter
    if isinstance(item, Pair) and isinstance(adapter, TwoStacks):
        sides = [
            (item.source, adapter.max_source_positions(), adapter.source_vocabulary()),
            (item.target, adapter.max_positions(), adapter.target_vocabulary()),
        ]
    else:
        assert isinstance(item, Encoded)
        sides = [(item, lens.max_tokens, getattr(adapter.config, "vocab_size", None))]
    for side, longest, words in sides:
        given = [*side.padding[0], *side.padding[1]]
        if longest is not None and len(given) + len(side) > longest:
            return False
        if words is not None and not all(0 <= one < words for one in given):
            return False
    return True


def _difference(lens: Lens, item: Item) -> float:
    """How far the model's vectors of a token with and without padding are apart, at most."""
    adapter = lens.adapter
    if isinstance(item, Pair):
        plain = pair_inputs(adapter, [item], lens.device, lens.dtype)
        sides = {"": item.source, "decoder_": item.target}
    else:
        plain = model_inputs(adapter, [item], lens.device)
        sides = {"": item}
    padded = dict(plain)
    for start, side in sides.items():
        for name, fill in (("input_ids", None), ("attention_mask", 0), ("token_type_ids", 0)):
            if f"{start}{name}" in plain:
                padded[f"{start}{name}"] = _padded(plain[f"{start}{name}"], side, fill)
    models = [adapter.model]
    if type(adapter.whole).__name__.endswith("ForSequenceClassification"):
        models.append(adapter.whole)  # whose head may read the first column
    errors: list[Tensor] = []
    for model in models:
        try:
            with_padding, alone = (_run(lens, model, inputs) for inputs in (padded, plain))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return 0.0  # a model that cannot be called with this padding gives nothing else
        for name in _COMPARED:
            vectors, expected = getattr(with_padding, name, None), getattr(alone, name, None)
            if vectors is None or expected is None:
                continue
            if expected.dim() == 3:
                side = sides[""] if name.startswith("encoder") else list(sides.values())[-1]
                first = len(side.padding[0])
                vectors = vectors[:, first : first + len(side)]
            relative = (vectors - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
            errors.append(relative.max())
    return float(torch.stack(errors).max()) if errors else 0.0


def _padded(row: Tensor, side: Encoded, fill: int | None) -> Tensor:
    """A row of one sequence (1, n) with its padding: the ids that were given, or `fill`."""
    before, behind = (
        row.new_tensor([ids if fill is None else [fill] * len(ids)]) for ids in side.padding
    )
    return torch.cat([before, row, behind], dim=1)


def _run(lens: Lens, model: nn.Module, inputs: dict[str, Any]) -> Any:
    def run() -> Any:
        with without_autocast(lens.device), reading(model, lens.adapter):
            return model(**inputs, **plain_options(model))

    return alone_with_model(model, run)
