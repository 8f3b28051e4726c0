"""Maps and explanations as other libraries' objects: pandas, xarray, tensors for bertviz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import MissingDependencyError
from normlens.results.axes import EXPLANATION, Axes, axes_of
from normlens.results.labelled import LabelledMaps
from normlens.scopes import resolve

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr

    from normlens.results.explanation import Explanation


def to_pandas(maps: LabelledMaps) -> pd.DataFrame:
    """One row per scope, layer (from 0; those that have the scope), target and source."""
    import pandas as pd

    targets = np.array(maps.tokens, dtype=object)
    sources = np.array(maps.source_tokens, dtype=object)
    frames = []
    for scope, array in maps.arrays.items():
        axes = (maps.layers_of(scope), np.arange(len(targets)), np.arange(len(sources)))
        layer, target, source = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        frames.append(
            pd.DataFrame(
                {
                    "scope": scope,
                    "layer": layer,
                    "target": target,
                    "target_token": targets[target],
                    "source": source,
                    "source_token": sources[source],
                    "value": array.ravel(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def to_xarray(maps: LabelledMaps) -> xr.Dataset:
    """Every array with its axes named and its tokens and layers as coordinates."""
    xr = _xarray()
    variables: dict[str, tuple[Axes, NDArray[Any]]] = {
        "allowed": (("layer", "target", "source"), maps.allowed)
    }
    for group, arrays in maps.groups.items():
        for name in arrays:
            label = name if group == "arrays" else f"{group}/{name}"
            variables[label] = (axes_of(group, name), maps.over_layers(group, name))
    return xr.Dataset(
        variables,
        coords={
            "layer": maps.layers,
            "target_token": ("target", maps.tokens),
            "source_token": ("source", maps.source_tokens),
        },
        attrs={"model": maps.provenance.get("model"), "completeness": maps.completeness},
    )


def explanation_to_pandas(explanation: Explanation) -> pd.DataFrame:
    """One row per token: its place, the token, its contribution; before them its sequence, if two.

    Places count from 0 in each sequence.
    """
    import pandas as pd

    frames = [
        pd.DataFrame(
            {
                **({"sequence": part.name} if part.name else {}),
                "position": np.arange(len(part)),
                "token": part.tokens,
                "contribution": part.contributions,
            }
        )
        for part in explanation.sequences
    ]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def bias_by_layer(explanation: Explanation) -> pd.Series:
    """What no token owns, by layer ("head" is what stands behind the last) and component.

    Of an encoder–decoder first by stack; layers count from 0 in each.
    """
    import pandas as pd

    names = ["layer", "component"]
    keys: list[tuple[object, ...]] = [(layer, name) for layer, name, _ in explanation.biases]
    if explanation.has_two_sequences:
        names = ["stack", *names]
        keys = [
            (*explanation.stack_of(layer), component) for layer, component, _ in explanation.biases
        ]
    index = pd.MultiIndex.from_tuples(keys, names=names)
    values = [share for *_, share in explanation.biases]
    return pd.Series(values, index=index, name="bias", dtype=float)


def explanation_to_xarray(explanation: Explanation) -> xr.Dataset:
    """Every array with its axes named, and its tokens, layers and components as coordinates."""
    xr = _xarray()
    names = ("nodes", "components", "heads")
    variables = {name: (EXPLANATION[name], getattr(explanation, name)) for name in names}
    variables["contributions"] = (("source",), explanation.contributions)
    for scope, flow in explanation.flows.items():
        variables[f"flow/{scope}" if scope else "flow"] = (EXPLANATION["flow"], flow)
    if explanation.head_flow is not None:
        variables["head_flow"] = (EXPLANATION["head_flow"], explanation.head_flow)
    layers: Any = np.arange(len(explanation.nodes))
    sequences: dict[str, Any] = {}
    if explanation.has_two_sequences:
        layers = explanation.layer_names
        variables["cross_heads"] = (EXPLANATION["cross_heads"], explanation.cross_heads)
        of_tokens = explanation.token_sequences
        sequences = {f"{axis}_sequence": (axis, of_tokens) for axis in ("source", "target")}
    return xr.Dataset(
        variables,
        coords={
            "layer": layers,
            "component": explanation.component_names,
            "source_token": ("source", explanation.tokens),
            "target_token": ("target", explanation.tokens),
            **sequences,
        },
        attrs={
            "model": explanation.provenance.get("model"),
            "value": explanation.value,
            "remainder": explanation.remainder,
            "completeness": explanation.completeness,
        },
    )


def shares_to_pandas(explanations: Sequence[Explanation]) -> pd.DataFrame:
    """One row per generated token: what source, prefix and biases are of its score."""
    import pandas as pd

    rows = []
    for why in explanations:
        shares = why.shares
        rows.append(
            {
                "position": why.position,
                "token": why.target,
                "score": why.value,
                "probability": why.probability,
                **asdict(shares),
            }
        )
    return pd.DataFrame(rows)


def _xarray() -> Any:
    try:
        import xarray as xr
    except ImportError as error:
        raise MissingDependencyError(
            "labelled arrays need xarray; run: pip install 'normlens[xarray]'"
        ) from error
    return xr


def to_bertviz(maps: LabelledMaps, scope: str) -> tuple[torch.Tensor, ...]:
    """Per layer that has the scope, a (1, heads, target, source) tensor."""
    import torch

    name = resolve(scope, maps.scopes)
    stacked = maps.heads[name] if name in maps.heads else maps.arrays[name][:, None]
    return tuple(torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in stacked)
