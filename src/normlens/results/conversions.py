"""Maps as objects of pandas, xarray and bertviz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, MissingDependencyError
from normlens.measures.ranks import widened
from normlens.results.axes import Axes, axes_of
from normlens.results.words import OTHER_SEQUENCE, OWN_SEQUENCE
from normlens.scopes import holds, resolve

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr

    from normlens.results.maps import Maps


def to_pandas(maps: Maps) -> pd.DataFrame:
    """One row per scope, layer (from 0; those that have the scope), target and source.

    Of an encoder–decoder both stacks, the encoder first: `stack` says which, and `source_sequence`
    whose token a source is. `source` counts the columns of the stack's maps.
    """
    import pandas as pd

    frames = [] if maps.encoder is None else [to_pandas(maps.encoder)]
    targets = np.array(maps.tokens, dtype=object)
    sources = np.array(maps.source_tokens, dtype=object)
    labels = np.array(maps.table_sequences, dtype=object)
    for scope, array in maps.arrays.items():
        axes = (maps.layers_of(scope), np.arange(len(targets)), np.arange(len(sources)))
        layer, target, source = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        frames.append(
            pd.DataFrame(
                {
                    **({"stack": maps.stack} if maps.stack else {}),
                    "scope": scope,
                    "layer": layer,
                    "target": target,
                    "target_token": targets[target],
                    "source": source,
                    **({"source_sequence": labels[source]} if labels.size else {}),
                    "source_token": sources[source],
                    "value": widened(array).ravel(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def to_xarray(maps: Maps) -> xr.Dataset:
    """Every array with its axes named and its tokens and layers as coordinates.

    What belongs to an encoder beside a decoder is called ``encoder/…``, its axes ``encoder_…``.
    """
    xr = import_xarray()
    variables, coordinates = _labelled_arrays(maps)
    if maps.encoder is not None:
        beside = _labelled_arrays(maps.encoder, "encoder")
        variables, coordinates = variables | beside[0], coordinates | beside[1]
    attributes = {"model": maps.provenance.get("model"), "completeness": maps.completeness}
    if maps.stack:
        attributes["stack"] = maps.stack
    return xr.Dataset(variables, coords=coordinates, attrs=attributes)


def _labelled_arrays(
    maps: Maps, stack: str = ""
) -> tuple[dict[str, tuple[Axes, NDArray[Any]]], dict[str, Any]]:
    """The variables and coordinates of one stack; the name of a stack stands before theirs."""
    of, slash = (f"{stack}_", f"{stack}/") if stack else ("", "")

    def named(axes: Axes) -> Axes:
        return tuple(f"{of}{axis}" for axis in axes)

    layers, targets, sources = pairs = named(("layer", "target", "source"))
    variables = {f"{slash}allowed": (pairs, maps.allowed)}
    for group, arrays in maps.groups.items():
        for name in arrays:
            label = slash + (name if group == "arrays" else f"{group}/{name}")
            values = widened(maps.over_layers(group, name))
            variables[label] = named(axes_of(group, name)), values
    coordinates: dict[str, Any] = {
        layers: maps.layers,
        f"{targets}_token": (targets, maps.tokens),
        f"{sources}_token": (sources, maps.source_tokens),
    }
    if maps.table_sequences:
        coordinates[f"{sources}_sequence"] = (sources, maps.table_sequences)
    return variables, coordinates


def import_xarray() -> Any:
    try:
        import xarray as xr
    except ImportError as error:
        raise MissingDependencyError(
            "labelled arrays need xarray; run: pip install 'normlens[xarray]'"
        ) from error
    return xr


# Maps as bertviz takes them: tensors of attention, layer by layer.


class HeadViewKeywords(TypedDict, total=False):
    """The keywords of ``bertviz.head_view`` for an encoder–decoder; attention layer by layer."""

    encoder_attention: tuple[torch.Tensor, ...]  # (1, heads, source, source) each
    decoder_attention: tuple[torch.Tensor, ...]  # (1, heads, target, target)
    cross_attention: tuple[torch.Tensor, ...]  # (1, heads, target, source)
    encoder_tokens: list[str]
    decoder_tokens: list[str]


def to_bertviz(maps: Maps, scope: str) -> tuple[torch.Tensor, ...] | HeadViewKeywords:
    """Per layer that has the scope, a (1, heads, target, source) tensor.

    Of an encoder–decoder the keywords of ``head_view``: each stack's attention to itself, the
    attention between them, and the tokens of both.
    """
    encoder, sequences = maps.encoder, np.array(maps.source_sequences, dtype=object)
    if encoder is None and (not maps.stack or not sequences.size):
        return _by_layer(maps, resolve(scope, maps.scopes))
    keywords: HeadViewKeywords = {}
    if encoder is not None and scope in encoder:
        keywords["encoder_attention"] = _by_layer(encoder, resolve(scope, encoder.scopes))
    own, other = _attentions(maps, scope)
    is_own, is_other = sequences == OWN_SEQUENCE, sequences == OTHER_SEQUENCE
    if own is not None and is_own.any():
        keywords["decoder_attention"] = _by_layer(maps, own, is_own)
    if other is not None and is_other.any():
        keywords["cross_attention"] = _by_layer(maps, other, is_other)
    if not keywords:
        name = resolve(scope, maps.scopes)  # raises for a scope of neither stack
        raise InputError(f"{name} has no parts of the sources that these maps still have")
    others = np.array(maps.source_tokens, dtype=object)[sequences == OTHER_SEQUENCE].tolist()
    tokens = others if encoder is None else encoder.tokens
    keywords["encoder_tokens"], keywords["decoder_tokens"] = tokens, maps.tokens
    return keywords


def _attentions(maps: Maps, scope: str) -> tuple[str | None, str | None]:
    """The scopes that show the decoder's columns of its own sequence and of the other one.

    The weights and the norms of one attention go together with those of the other.
    """
    if scope not in maps:
        return None, None
    name = resolve(scope, maps.scopes)
    own, other = (name if held else None for held in holds(name))
    counterpart = {"ATTN-W": "CROSS-W", "ATTN-N": "CROSS-N"}.get(name, "")
    return own, resolve(counterpart, maps.scopes) if counterpart in maps else other


def _by_layer(
    maps: Maps, name: str, columns: NDArray[np.bool_] | None = None
) -> tuple[torch.Tensor, ...]:
    """A tensor per layer, of single heads where there are some; `columns` chooses sources."""
    import torch

    of_heads = "CROSS-N" if name.endswith("CROSS-N") else name
    stacked = maps.heads[of_heads] if of_heads in maps.heads else maps.arrays[name][:, None]
    stacked = stacked if columns is None else stacked[..., columns]
    layers = (np.ascontiguousarray(widened(layer)) for layer in stacked)
    return tuple(torch.from_numpy(layer)[None] for layer in layers)
