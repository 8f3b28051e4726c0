"""Passes of a model as it stands: through its body, and from there through its head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from normlens.errors import InputError
from normlens.models.unwrapping import check_weights, explain_failure
from normlens.trace.locking import exclusive, other_forwards
from normlens.trace.run import plain_options, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens

T = TypeVar("T")


def model_ready(lens: Lens, work: Callable[[], T]) -> T:
    """Call `work` while no other thread uses the model, in evaluation mode and without autograd."""
    whole: nn.Module = lens.adapter.whole
    chunked = any(
        getattr(block, "chunk_size_feed_forward", 0) or 0 for block in lens.adapter.blocks()
    )
    if chunked:
        raise InputError(
            "this model runs its feed-forward blocks in chunks; set chunk_size_feed_forward to 0 "
            "in its configuration and load it again"
        )

    def ready() -> T:
        with without_autocast(lens.device), reading(whole, lens.adapter):
            check_weights(lens.model, lens.layers)
            return work()

    return exclusive(whole, ready)


def body_pass(lens: Lens, inputs: Mapping[str, Tensor]) -> Any:
    """What the model without its head returns. For use inside `model_ready`."""
    model = lens.adapter.model
    try:
        return model(**inputs, **plain_options(model))
    except RuntimeError as error:
        explain_failure(model, error)
        raise


def last_vectors(output: Any) -> Tensor:
    """The vectors behind the last layer and the body's end, (b, i, d)."""
    return output[0]


def head_pass(
    whole: nn.Module, bodies: Sequence[nn.Module], output: Any, inputs: Mapping[str, Tensor]
) -> Any:
    """What the whole model returns where its body returns `output`. For use inside `model_ready`.

    The head is the model's code with all that it does to its scores (soft caps, transforms).
    """
    with other_forwards(dict.fromkeys(bodies, lambda _: lambda *__, **___: output)):
        return whole(**inputs, **plain_options(whole))


def bodies_of(lens: Lens) -> list[nn.Module]:
    """The body, and those of its parts that hold all layers: OPT's head calls such a part."""
    blocks = set(lens.adapter.blocks())
    return [
        module
        for module in lens.adapter.model.modules()
        if not isinstance(module, nn.ModuleList) and blocks <= set(module.modules()) - {module}
    ]


def with_vectors(output: Any, vectors: Tensor) -> Any:
    """What a body returned, with other last vectors and nothing else that depends on tokens."""
    if isinstance(output, tuple):
        return (vectors, *([None] * (len(output) - 1)))
    return type(output)(last_hidden_state=vectors)
