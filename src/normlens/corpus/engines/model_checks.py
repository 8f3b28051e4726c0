"""Models that a run cannot take, refused before it begins."""

from __future__ import annotations

from normlens.corpus.runs.options import RunOptions
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.models.parts import SignalEncoder


def check_tokenizer(lens: Lens) -> None:
    """Raise for a model that does not read texts as a run gives them."""
    if isinstance(lens.adapter, SignalEncoder):
        raise InputError(f"{lens.name} reads pictures or sound, and a run is over texts")
    if lens.adapter.reads_padding:
        raise InputError(
            f"{lens.name} reads texts with their padding, which a run leaves out; lens.maps(text) "
            "analyses them one by one"
        )
    if lens.tokenizer is None:
        raise InputError(
            f"{lens.name} has no tokenizer, which a run needs; save one beside the model with "
            "tokenizer.save_pretrained(…), or pass normlens.load(model, tokenizer) as the model"
        )


def check_masking(options: RunOptions, lens: Lens) -> None:
    """Raise for a mask that the model does not know."""
    if options.mask and lens.two_stacks:
        raise InputError(
            f"{lens.name} is an encoder–decoder, whose texts are not masked; leave --mask out"
        )
    if options.mask and lens.causal:
        raise InputError(f"{lens.name} is a causal model and knows no mask token; leave --mask out")
