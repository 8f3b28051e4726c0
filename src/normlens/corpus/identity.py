"""Which model it was: hashes of weights and tokenizer, and what else the numbers depend on."""

from __future__ import annotations

import hashlib
import json
import platform
import socket
from typing import Any

import torch

from normlens.lens import Lens, versions


def identify(lens: Lens) -> dict[str, Any]:
    """A model as a run's manifest describes it."""
    return {
        "name": lens.name,
        "revision": lens.revision,
        "weights": weights_hash(lens),
        "tokenizer": tokenizer_hash(lens.tokenizer),
        "type": lens.model_type,
        "components": lens.component_sequence,
        "layers": lens.n_layers,
        "scopes": lens.scopes,
        "causal": lens.causal,
        "max_tokens": lens.max_tokens,
        "dtype": str(lens.dtype).removeprefix("torch."),
        "device": lens.device.type,
    }


def digest(identity: dict[str, Any]) -> str:
    """A short name for a model as `identify` describes it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def weights_hash(lens: Lens) -> str:
    """SHA-256 over every tensor of the model: its name, type, shape and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lens.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        if values.numel():
            digest.update(memoryview(values.view(torch.uint8).numpy()))
    return f"sha256:{digest.hexdigest()}"


def tokenizer_hash(tokenizer: Any) -> str | None:
    """SHA-256 of what a tokenizer does, whatever it was called with before."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        described = json.loads(backend.to_str())
        # Truncation and padding are left over from the last call.
        described = {k: v for k, v in described.items() if k not in ("truncation", "padding")}
    else:
        described = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    text = json.dumps([described, special], sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def software() -> dict[str, str]:
    """Versions of everything that a number in a table may depend on."""
    import pandas
    import pyarrow
    import scipy

    return {
        **versions(),
        "scipy": scipy.__version__,
        "pandas": pandas.__version__,
        "pyarrow": pyarrow.__version__,
    }


def machine(lens: Lens) -> dict[str, Any]:
    """Where the numbers were computed."""
    device = lens.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "device": f"{device} ({name})" if name else str(device),
        "threads": torch.get_num_threads(),
    }
