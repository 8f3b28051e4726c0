"""What a model has whose layers may differ: its scopes, and its components in words."""

from __future__ import annotations

from collections.abc import Sequence

from normlens.components import Layer
from normlens.errors import InputError, UnknownScopeError
from normlens.layers import layers_in_words
from normlens.options import AnalysisOptions


def scopes_of(layers: Sequence[Layer]) -> list[str]:
    """Every scope that any of the layers has, each kind of layer's in its order."""
    return list(dict.fromkeys(scope for layer in layers for scope in layer.scopes))


def chosen_scopes(
    options: AnalysisOptions, layers: Sequence[Layer], chosen: Sequence[int], model: str
) -> list[str]:
    """The scopes that are asked for; one that none of the `chosen` layers has is an error.

    Short names mean scopes of the chosen layers.
    """
    here = scopes_of([layers[index] for index in chosen])
    try:
        return options.scopes_of(here)
    except UnknownScopeError:
        elsewhere = scopes_of(layers)
        if here == elsewhere:
            raise
        # A name that no layer knows raises here, with all of the model's scopes.
        for scope in options.scopes_of(elsewhere):
            if scope not in here:
                having = [index for index, layer in enumerate(layers) if scope in layer.scopes]
                raise InputError(
                    f"no scope {scope} in {layers_in_words(chosen)} of {model}, whose layers "
                    f"differ; those with it: {', '.join(map(str, having))}"
                ) from None
        raise


def components_in_words(layers: Sequence[Layer]) -> str:
    """The order of components, once for each kind of layer."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(layer.scopes, []).append(index)
    # The first layer of ModernBERT lacks a norm that all others have, though no scope shows it.
    words = [(layers[indices[-1]].component_sequence, indices) for indices in kinds.values()]
    if len(words) == 1:
        return words[0][0]
    return "; ".join(f"{sequence} ({layers_in_words(indices)})" for sequence, indices in words)
