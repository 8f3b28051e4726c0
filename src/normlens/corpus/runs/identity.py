"""The identity of a model: its weights, configuration and tokenizer, and the software versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import NormLensError
from normlens.gpu.matmul import formed, lazy_tensor
from normlens.inputs.encode import can_generate
from normlens.layers import Dense
from normlens.lens import Lens
from normlens.models.parts import DECODER, ENCODER
from normlens.models.reading import active_adapters, loaded_tensor, numbers_of
from normlens.pipeline.batches import versions

#: Fields of a configuration that the manifest has elsewhere, or that no number depends on.
_ELSEWHERE = frozenset(
    {
        "_name_or_path",
        "_commit_hash",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "_attn_implementation",
        "attn_implementation",
    }
)
#: What a tokenizer does beside its rules when it is called.
_CALLS = ("model_input_names", "truncation_side", "split_special_tokens")
#: Ends of the names of options that say where a tokenizer lies.
_PLACES = ("_file", "_path", "_dir", "_hash", "is_local", "local_files_only")


def identify(lens: Lens, head: bool = False) -> dict[str, Any]:
    """Describe a model as a run's manifest does; with `head`, also what stands behind its body."""
    behind: dict[str, Any] = {"head": head_hash(lens)} if head else {}
    if lens.two_stacks:
        behind |= {"stacks": [ENCODER, DECODER], "generates": can_generate(lens)}
    return {
        "name": lens.source,
        "revision": lens.revision,
        "weights": weights_hash(lens),
        "config": configuration(lens),
        "tokenizer": tokenizer_hash(lens.tokenizer),
        "type": lens.model_type,
        "components": lens.component_sequence,
        "layers": lens.n_layers,
        "scopes": lens.scopes,
        "causal": lens.causal,
        "max_tokens": lens.max_tokens,
        "dtype": str(lens.dtype).removeprefix("torch."),
        "device": lens.device.type,
        **behind,
    }


def digest(identity: dict[str, Any]) -> str:
    """Hash a model as `identify` describes it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def weights_hash(lens: Lens) -> str:
    """Hash every tensor of the model's body (SHA-256): its name, type, shape and values.

    Of adapters it also depends on which are at work, and how strongly.
    """
    adapters = [
        f"{name} {active_adapters(module)} {getattr(module, 'scaling', None)}\n"
        for name, module in lens.model.named_modules()
        if hasattr(module, "base_layer")
    ]
    return _tensors_hash(_state(lens.model), "".join(adapters))


def head_hash(lens: Lens) -> str:
    """Hash what stands behind the body: a head's tensors, and how a text's vector is pooled."""
    whole, body = lens.adapter.whole, lens.model.state_dict(keep_vars=True)
    own = {id(tensor) for tensor in body.values()}
    state = whole.state_dict(keep_vars=True)
    behind = [name for name, tensor in state.items() if id(tensor) not in own]
    tensors = {name: tensor for name, tensor in _state(whole).items() if name in behind}
    described = [type(whole).__name__]
    try:
        pooling = lens.pooling
    except NormLensError as error:  # no cosine of this model can be asked for
        described.append(str(error))
    else:
        described.append(f"{pooling.reads} {pooling.max_tokens} {pooling.lower_case}")
        for place, step in enumerate(pooling.steps):
            if isinstance(step, Dense):
                bias = step.linear.bias
                tensors[f"pooling.{place}.weight"] = step.linear.weight
                tensors |= {} if bias is None else {f"pooling.{place}.bias": bias}
            else:
                described.append(f"{place} {getattr(step, 'activation', step)}")
    return _tensors_hash(tensors, "\n".join(described))


def _state(model: nn.Module) -> dict[str, Any]:
    """Every tensor of a model by its name; those that are offloaded come when they are needed."""
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if getattr(tensor, "is_meta", False):
            state[name] = lazy_tensor(
                tensor.shape, tensor.dtype, partial(loaded_tensor, model, name)
            )
    return state


def _tensors_hash(tensors: Mapping[str, Any], described: str = "") -> str:
    digest = hashlib.sha256(described.encode())
    for name, tensor in sorted(tensors.items()):
        if not isinstance(tensor, Tensor):  # a setting of a quantised module
            digest.update(f"{name} {tensor!r}\n".encode())
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values: Any = numbers_of(formed(tensor).detach()).cpu().contiguous().reshape(-1)
        if values.numel():
            digest.update(memoryview(values.view(torch.uint8).numpy()))
    return f"sha256:{digest.hexdigest()}"


def configuration(lens: Lens) -> dict[str, Any]:
    """List the model's configuration, without where it lies and who wrote it."""
    config = lens.adapter.config
    fields = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return _without(json.loads(json.dumps(fields, default=str)), _ELSEWHERE)


def _without(fields: Any, names: frozenset[str]) -> Any:
    if not isinstance(fields, dict):
        return fields
    return {name: _without(value, names) for name, value in fields.items() if name not in names}


def tokenizer_hash(tokenizer: Any) -> str | None:
    """Hash what a tokenizer does (SHA-256), whatever it was called with before."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        described = json.loads(backend.to_str())
        # Truncation and padding are left over from the last call.
        described = {k: v for k, v in described.items() if k not in ("truncation", "padding")}
    else:
        described = {
            "class": type(tokenizer).__name__,
            "vocabulary": tokenizer.get_vocab(),
            # Its rules lie in files (merges, a SentencePiece model) and in options.
            "files": {name: _file_hash(path) for name, path in sorted(_files(tokenizer).items())},
            "options": {
                name: value
                for name, value in getattr(tokenizer, "init_kwargs", {}).items()
                if not name.endswith(_PLACES)
            },
        }
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    calls = {name: getattr(tokenizer, name, None) for name in _CALLS}
    text = json.dumps([described, special, calls], sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _files(tokenizer: Any) -> dict[str, str]:
    names = getattr(tokenizer, "vocab_files_names", {})
    paths = {name: getattr(tokenizer, name, None) for name in names}
    # Marian has two models, which it keeps under another name.
    paths |= {
        f"spm_{k}": path for k, path in enumerate(getattr(tokenizer, "spm_files", None) or ())
    }
    return {name: str(path) for name, path in paths.items() if path and os.path.isfile(path)}


def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def software() -> dict[str, str]:
    """List the versions of everything that a number in a table may depend on."""
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
    """Describe the machine where the numbers are computed."""
    device = lens.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "device": f"{device} ({name})" if name else str(device),
        "threads": torch.get_num_threads(),
    }
