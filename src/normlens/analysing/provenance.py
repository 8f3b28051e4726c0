"""What every result says about how it was made."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normlens._version import __version__

if TYPE_CHECKING:
    from normlens.lens import Lens


def provenance(lens: Lens, rule: str, completeness: float, tolerance: float) -> dict[str, Any]:
    """The model, the rule for its activations, how exact the result is, and where it was made."""
    compared = lens.guard.in_words(rule)
    return {
        "model": lens.name,
        "revision": lens.revision,
        "model_type": lens.model_type,
        "components": lens.component_sequence,
        "causal": lens.causal,
        "nonlinearity": rule,
        "completeness": completeness,
        "tolerance": tolerance,
        "dtype": str(lens.dtype).removeprefix("torch."),
        "compute_dtype": str(lens.compute_dtype).removeprefix("torch."),
        **({} if compared is None else {"compared_with_float32": compared}),
        "device": str(lens.device),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of everything that a number may depend on."""
    import transformers

    return {
        "normlens": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
