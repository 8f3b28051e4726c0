"""Labelled maps of single layers, multiplied into maps through all layers up to each."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from normlens.analysis import reachable, rollout
from normlens.errors import InputError
from normlens.layers import layers_in_words
from normlens.results.labelled import LabelledMaps
from normlens.scopes import WEIGHT_SCOPES, components_of, resolve

M = TypeVar("M", bound=LabelledMaps)

#: What maps say of their sources (`provenance["origin"]`) where these are the model's input tokens,
#: by a product of layers.
ROLLOUT = "rollout"
#: The residual connection's share where a scope does not have it (Abnar & Zuidema 2020).
RESIDUAL = 0.5


def scope_rollout(maps: M, scope: str) -> M:
    """The rollout of one scope, by the rule for its kind.

    Weights as they are, ``½ W̄ + ½ I``. Norms with their rows made to sum to 1, and ``½ A + ½ I``
    of them where the scope has no residual connection (ATTN-N).
    """
    name = resolve(scope, maps.scopes)
    residual = 0.0 if "RES" in components_of(name) else RESIDUAL
    return rolled_out(
        maps, name, method=name, residual=residual, normalise=name not in WEIGHT_SCOPES
    )


def rolled_out(maps: M, scope: str, *, method: str, residual: float, normalise: bool) -> M:
    """Maps whose sources are the model's input tokens: the rollout of `scope`'s.

    Only the maps of this scope are kept. The provenance says how they were multiplied.
    """
    array = maps.arrays[scope]
    _check(maps, len(array), array.shape[1:])
    about = {"method": method, "residual": residual, "normalise": normalise}
    return replace(
        maps,
        arrays={scope: rollout(array, residual=residual, normalise=normalise)},
        allowed=reachable(maps.allowed),
        provenance={**maps.provenance, "origin": ROLLOUT, "rollout": about},
        mixing={},
        heads={},
        standard_error={},
        statistics={},
        correlations=None,
    )


def rollout_words(maps: LabelledMaps) -> str | None:
    """What the values of rolled-out maps are, in words; None for maps of single layers."""
    about = maps.provenance.get("rollout")
    if maps.provenance.get("origin") != ROLLOUT or not isinstance(about, dict):
        return None
    return f"rollout ({about.get('method')}) up to each layer"


def _check(maps: LabelledMaps, layers: int, shape: tuple[int, ...]) -> None:
    """Raise unless each layer's sources are the targets of the layer before it."""
    check_layers(maps, layers)
    if shape[0] != shape[1] or maps.source_axis is not None:
        raise InputError(
            "a rollout needs layers that read their own tokens alone; these maps have "
            f"{shape[0]} targets and {shape[1]} sources"
        )


def check_layers(maps: LabelledMaps, layers: int) -> None:
    """Raise unless these are tokens' maps of single layers, of all from 0 on."""
    origin = maps.provenance.get("origin", "layer")
    if origin != "layer":
        raise InputError(
            f"the sources of these maps are the model's input tokens already (origin {origin!r}); "
            "a rollout multiplies maps of single layers"
        )
    if maps.layers != list(range(layers)):
        raise InputError(
            "a rollout needs the maps of all layers from 0 on; these maps have "
            f"{layers_in_words(maps.layers)}"
        )
    if maps.token_words is not None and not maps.token_ids:  # what words() leaves
        raise InputError("a rollout multiplies maps of tokens; call rollout() before words()")
    if "outside_scopes" in maps.provenance:
        raise InputError(
            "a rollout multiplies layers as if nothing happened between them, but "
            f"{maps.provenance['outside_scopes']}"
        )
