"""Maps of single layers multiplied through all layers, for one stack or two."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.measures import maps as measures
from normlens.results.words import OTHER_SEQUENCE
from normlens.scopes import WEIGHT_SCOPES, components_of, holds, layers_in_words, resolve

if TYPE_CHECKING:
    from normlens.results.maps import Maps


# Labelled maps of single layers, multiplied into maps through all layers up to each.


#: What maps say of their sources (`provenance["origin"]`) where these are the model's input tokens,
#: by a product of layers.
ROLLOUT = "rollout"
#: The residual connection's share where a scope does not have it (Abnar & Zuidema 2020).
RESIDUAL = 0.5


def scope_rollout(maps: Maps, scope: str) -> Maps:
    """The rollout of one scope, by the rule for its kind.

    Weights as they are, ``½ W̄ + ½ I``. Norms with their rows made to sum to 1, and ``½ A + ½ I``
    of them where the scope has no residual connection (ATTN-N).
    """
    name = resolve(scope, maps.scopes)
    residual = 0.0 if "RES" in components_of(name) else RESIDUAL
    return rolled_out(
        maps, name, method=name, residual=residual, normalise=name not in WEIGHT_SCOPES
    )


def rolled_out(maps: Maps, scope: str, *, method: str, residual: float, normalise: bool) -> Maps:
    """Maps whose sources are the model's input tokens: the rollout of `scope`'s.

    Only the maps of this scope are kept. The provenance says how they were multiplied.
    """
    array = maps.arrays[scope]
    check_layers(maps, len(array))
    _, targets, sources = array.shape
    if targets != sources or maps.source_axis is not None:
        raise InputError(
            "a rollout needs layers that read their own tokens alone; these maps have "
            f"{targets} targets and {sources} sources"
        )
    about = {"method": method, "residual": residual, "normalise": normalise}
    product = measures.rollout(array, residual=residual, normalise=normalise)
    return _alone(maps, {scope: product}, measures.reachable(maps.allowed), about)


def _alone(
    maps: Maps, arrays: dict[str, NDArray[Any]], allowed: NDArray[np.bool_], about: dict[str, Any]
) -> Maps:
    """Maps of products of layers, without what is of single layers."""
    return replace(
        maps,
        arrays=arrays,
        allowed=allowed,
        provenance={**maps.provenance, "origin": ROLLOUT, "rollout": about},
        mixing={},
        heads={},
        standard_error={},
        statistics={},
        correlations=None,
    )


def rollout_words(maps: Maps) -> str | None:
    """What the values of rolled-out maps are, in words; None for maps of single layers."""
    about = maps.provenance.get("rollout")
    if maps.provenance.get("origin") != ROLLOUT or not isinstance(about, dict):
        return None
    return f"rollout ({about.get('method')}) up to each layer"


def check_layers(maps: Maps, layers: int) -> None:
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


# The rollout of an encoder–decoder: through the decoder's layers and, below them, the encoder's.
#
# A layer of the decoder reads its own tokens, as the layer below left them, and the encoder's last
# vectors, which are products of the encoder's layers. The encoder's final norm, where a family has
# one, stands between the two and has no map.


def pair_rollout(maps: Maps, scope: str) -> Maps:
    """The rollout of a decoder's scope, over the inputs of both sequences.

    The encoder's share is the rollout of the scope that ends as this one does behind CROSS:
    ATTNRESLNFFRESLN-N for ATTNRESLNCROSSRESLNFFRESLN-N.
    """
    name = resolve(scope, maps.scopes)
    behind = [each for each in maps.scopes if each.endswith("-N") and all(holds(each))]
    if name not in behind:
        raise InputError(
            f"{name} has parts of one sequence alone, and a rollout of a decoder needs both: take "
            "a scope behind the attention to the encoder and its residual connection"
            + (f" ({', '.join(behind)})" if behind else "")
        )
    check_layers(maps, len(maps.arrays[name]))
    other = np.array([label == OTHER_SEQUENCE for label in maps.source_sequences], dtype=bool)
    encoder, wanted = maps.encoder, "ATTN" + name.rpartition("CROSS")[2]
    layers = None if encoder is None else encoder.provenance.get("stack_layers")
    if encoder is None or wanted not in encoder.scopes or len(encoder.layers) != layers:
        held = "none"
        if encoder is not None:
            held = f"{', '.join(encoder.scopes)}, {len(encoder.layers)} of {layers} layers"
        raise InputError(
            f"a rollout of {name} goes on through all layers of the encoder with their {wanted}; "
            f"call it on maps of both stacks that have these (the encoder's here: {held})"
        )
    rolled = scope_rollout(encoder, wanted)
    if len(rolled.targets) != other.sum() or (~other).sum() != len(maps.targets):
        raise InputError(
            "a rollout of a decoder needs every token of both sequences among its sources; call "
            "rollout() before sources_of()"
        )
    about = {"method": name, "residual": 0.0, "normalise": True, "encoder": wanted}
    product = measures.pair_rollout(maps.arrays[name], other, rolled.arrays[wanted][-1])
    allowed = measures.pair_reachable(maps.allowed, other, rolled.allowed[-1])
    return replace(_alone(maps, {name: product}, allowed, about), encoder=rolled)
