"""What a model is called with, and how the caller's surroundings are kept out of the call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from normlens.models.base import Adapter
from normlens.models.signals import SignalEncoder
from normlens.pairs import Pair
from normlens.text import Encoded, pad


def model_inputs(
    adapter: Adapter, batch: Sequence[Encoded], device: torch.device
) -> dict[str, Any]:
    """The arguments of the model's call for a batch."""
    if isinstance(adapter, SignalEncoder):
        return _signal_inputs(adapter, batch, device)
    inputs = pad(batch, _padding_id(adapter), device)
    # A tokenizer may give types that its model does not know.
    types = {kind for sequence in batch for kind in sequence.type_ids or ()}
    if types and max(types) >= adapter.token_types():
        del inputs["token_type_ids"]
    return inputs


def _signal_inputs(
    adapter: SignalEncoder, batch: Sequence[Encoded], device: torch.device
) -> dict[str, Any]:
    """Pictures or sounds of one shape; padding would be seen and heard."""
    signals = [sequence.signal for sequence in batch if sequence.signal is not None]
    dtype = next(p.dtype for p in adapter.model.parameters() if p.is_floating_point())
    values = torch.stack(signals).to(device, dtype)
    return {adapter.argument: values, **adapter.call_options(values)}


def pair_inputs(
    adapter: Adapter, batch: Sequence[Pair], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The arguments of an encoder–decoder's call; either side is padded on the right."""
    padding = _padding_id(adapter)
    targets = pad([pair.target for pair in batch], padding, device)
    inputs = {f"decoder_{name}": tensor for name, tensor in targets.items()}
    features = [pair.features for pair in batch if pair.features is not None]
    if features:
        return {"input_features": torch.stack(features).to(device, dtype), **inputs}
    return {**pad([pair.source for pair in batch], padding, device), **inputs}


def _padding_id(adapter: Adapter) -> int:
    """The id of padding: any will do under the mask; some configurations name none, or −1."""
    pad_id = getattr(adapter.config, "pad_token_id", None)
    return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Switch a caller's autocast off; a device that knows none (meta) needs nothing.

    It would run the model in one precision and the algebra in another.
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield
