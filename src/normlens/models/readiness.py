"""Checks that a loaded model can be run and its weights read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normlens.components import Layer
from normlens.errors import InputError, NormLensError, UnsupportedModelError
from normlens.late import LateTensor
from normlens.models.offloading import execution_places


def check_weights(
    model: nn.Module, layers: Sequence[Layer], blocks: Sequence[nn.Module] | None = None
) -> None:
    """Raise unless all weights are in memory, on one device, and in one precision.

    With `blocks` only the weights of each block have to be on one device.
    """
    name = type(model).__name__
    places = execution_places(model)
    if torch.device("meta") in places:
        raise UnsupportedModelError(
            f"the weights of {name} are not in memory, and no hook of accelerate brings them when "
            "a module runs; load it whole, without device_map or offloading"
        )
    if len(places) > 1 and blocks is None:
        raise UnsupportedModelError(
            f"the weights of {name} are spread over {_listed(places)}; only maps of single layers "
            "(lens.maps) can be taken of such a model. Load it on one device (without device_map, "
            'then model.to("cuda"))'
        )
    for index, block in enumerate(blocks or () if len(places) > 1 else ()):
        if len(within := execution_places(block)) > 1:
            raise UnsupportedModelError(
                f"the weights of layer {index} of {name} are spread over {_listed(within)}; a "
                "layer is analysed where its weights are, so give each layer one device in the "
                "device_map (accelerate's no_split_module_classes)"
            )
    first = next(p.dtype for p in model.parameters() if p.is_floating_point())
    held = [linear.weight for layer in layers for linear in layer.linear_maps]
    # What is formed late takes and gives vectors in the model's precision, whatever it holds.
    kinds = {first} | {weight.dtype for weight in held if not isinstance(weight, LateTensor)}
    if len(kinds) > 1:
        raise _mixed(name, kinds)


def _listed(places: set[torch.device]) -> str:
    return ", ".join(sorted(map(str, places)))


def explain_failure(model: nn.Module, error: RuntimeError) -> None:
    """Raise with the cause if the model failed because of where or in what its weights are."""
    if "meta tensor" in str(error) and not isinstance(error, NormLensError):
        raise UnsupportedModelError(
            f"{type(model).__name__} needs weights of a module that does not run, which "
            "accelerate's hooks do not bring; load it whole, without device_map or offloading"
        ) from error
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    about_types = "dtype" in str(error) or "scalar type" in str(error)
    if len(kinds) > 1 and about_types and not isinstance(error, NormLensError):
        raise _mixed(type(model).__name__, kinds, str(error).splitlines()[0]) from error


def _mixed(name: str, kinds: set[torch.dtype], reason: str = "") -> UnsupportedModelError:
    several = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    return UnsupportedModelError(
        f"the weights of {name} are of several precisions ({several}){reason and f': {reason}'}; "
        "convert it with model.to(torch.float32), or load(…, dtype=…)"
    )


def check_chunks(blocks: Sequence[Any], n: int) -> None:
    """Raise where feed-forward blocks run in chunks that do not divide `n` tokens."""
    chunk = max((getattr(block, "chunk_size_feed_forward", 0) or 0 for block in blocks), default=0)
    if chunk and n % chunk:
        raise InputError(
            f"this model runs its feed-forward blocks in chunks of {chunk} tokens, and {n} tokens "
            "are not a multiple of that; set chunk_size_feed_forward to 0 in its configuration and "
            "load it again"
        )


def check_causal(config: Any, name: str) -> None:
    """Raise where a configuration asks to look both ways, and the model's code cannot do so."""
    if not getattr(config, "is_causal", True):
        raise UnsupportedModelError(
            f"transformers runs {name} with a causal mask alone; set is_causal to True in its "
            "configuration"
        )


def padding_spoils(layers: Sequence[Layer], dtype: torch.dtype, lengths: Sequence[int]) -> bool:
    """Whether a padded batch has rows that see no token at all, which give NaN in this precision.

    Behind the end of a short text, a window may hold nothing but padding. The masked scores of
    such a row are −∞ where the softmax has a smaller range than the mask was made for (float64
    masks in a float32 softmax), or where a sum leaves the range of float16. Its NaN then reaches
    real tokens as 0 · NaN.
    """
    if dtype not in (torch.float64, torch.float16):
        return False
    windows = [layer.reach.back for layer in layers if layer.reach.back is not None]
    return bool(windows) and max(lengths) - min(lengths) > min(windows)
