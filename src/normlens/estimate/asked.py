"""What a user asks to be estimated, judged as the lens would judge it."""

from __future__ import annotations

from typing import Any

from normlens.analysing.stacks import stacks_of
from normlens.decomposition.least import check_limit
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.errors import InputError
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import ModelSizes
from normlens.lens import Lens
from normlens.models.two_stacks import TwoStacks
from normlens.options import AnalysisOptions


def check_lengths(lens: Lens, tokens: int, target_tokens: int | None) -> None:
    """Raise for texts that the model does not take, and say which of two is too long."""
    if not isinstance(lens.adapter, TwoStacks):
        if target_tokens is not None:
            raise InputError(f"--target-tokens is for encoder–decoders; {lens.name} reads one text")
        limits = {"": (tokens, lens.max_tokens)}
    elif target_tokens is None:
        raise InputError(
            f"{lens.name} is an encoder–decoder; give the length of its target with --target-tokens"
        )
    else:
        frames = lens.adapter.max_source_positions()
        if lens.adapter.hears and tokens != frames:
            raise InputError(
                f"{lens.name} hears its source, which always has {frames} frames; give --tokens "
                f"{frames}"
            )
        source = (tokens, frames)
        limits = {" in its source": source, " in its target": (target_tokens, lens.max_tokens)}
    for where, (count, most) in limits.items():
        if most is not None and count > most:
            raise InputError(f"{lens.name} takes at most {most} tokens{where}, not {count}")


def layers_and_scopes(lens: Lens, asked: AnalysisOptions) -> dict[str, Any]:
    """The layers and scopes of an `Analysis`: the model's, or those of either stack."""
    if not lens.two_stacks:
        layers, scopes = asked.layers_of(lens.n_layers, lens.name), asked.scopes_of(lens.scopes)
        return {"layers": tuple(layers), "scopes": tuple(scopes)}
    *encoder, decoder = stacks_of(lens, asked, arrays=True, correlations=False)
    layers = [stack.first + k for stack in (*encoder, decoder) for k in stack.request.layers]
    return {
        "layers": tuple(layers),
        "scopes": tuple(decoder.request.scopes),
        "encoder_scopes": tuple(scope for stack in encoder for scope in stack.request.scopes),
    }


def check_memory_limit(lens: Lens, sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise unless the analysis's limit suffices for each stack."""
    for stack in dict.fromkeys(sizes.layers[index].stack for index in analysis.layers):
        here = [index for index in analysis.layers if sizes.layers[index].stack == stack]
        first = sizes.layers[here[0]]
        check_limit(
            analysis.memory_limit or DEFAULT_LIMIT,
            [lens.layers[index] for index in here],
            [analysis.targets(first)],
            analysis.scopes_of(first),
            analysis.rule,
            sizes.compute_itemsize,
            [analysis.tokens],
        )
