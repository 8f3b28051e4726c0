"""Measures of maps: amplification, mixing ratio, shares, special dimensions, words, rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.measures.ranks import widened

if TYPE_CHECKING:
    from torch import Tensor


# How much one scope strengthens or weakens each pair beside another.


AXES = ("source", "target", "none")


def normalise(maps: NDArray[Any], axis: str = "source") -> NDArray[Any]:
    """Scale maps (…, i, j) so that each source's column, or each target's row, sums to 1."""
    valid_choice(axis, AXES, "axis")
    maps = widened(maps)
    if axis == "none":
        return maps
    sums = maps.sum(axis=-2 if axis == "source" else -1, keepdims=True)
    return np.divide(maps, sums, out=np.zeros_like(maps), where=sums > 0)


def amplification(before: NDArray[Any], after: NDArray[Any], axis: str = "source") -> NDArray[Any]:
    """``after − before``, both normalised; FF-amp of Kobayashi et al. 2024 (section 5, footnote 6).

    Each column (one source j) sums to 1 before the difference is taken. (…, i, j) → (…, i, j).
    """
    return normalise(after, axis) - normalise(before, axis)


class Pair(NamedTuple):
    """A target and a source (positions from 0), and how much their pair was amplified."""

    target: int
    source: int
    value: float


def strongest_pairs(
    difference: NDArray[Any], allowed: NDArray[Any], top: int, same_token: NDArray[Any]
) -> tuple[list[Pair], list[Pair]]:
    """The `top` most strengthened and most weakened pairs of one layer, (i, j) × 2, with i ≠ j.

    `same_token` (i, j) says which pairs are of a token with itself.
    """
    targets, sources = np.nonzero(allowed & ~same_token)
    values = difference[targets, sources]
    order = np.argsort(values, kind="stable")

    def pairs(ranked: NDArray[Any]) -> list[Pair]:
        return [Pair(int(targets[k]), int(sources[k]), float(values[k])) for k in ranked[:top]]

    strengthened = [pair for pair in pairs(order[::-1]) if pair.value > 0]
    return strengthened, [pair for pair in pairs(order) if pair.value < 0]


# How much of a vector other tokens supplied (Kobayashi et al. 2021, section 4).


Array = TypeVar("Array", NDArray[np.floating], "Tensor")


def mixing_ratio(others: Array, own: Array) -> Array:
    """``‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖)``: the norm of the others' *sum*.

    `others` and `own` are these two norms; for attention weights the others' mass and one's own.
    """
    return others / (others + own)


# How much of a score each of two sequences supplies.


def share_of_sums(source: NDArray[np.floating], prefix: NDArray[np.floating]) -> float:
    """``|Σ source| / (|Σ source| + |Σ prefix|)``: what is left of each after its tokens cancel."""
    one, other = (abs(float(part.sum(dtype=np.float64))) for part in (source, prefix))
    return one / (one + other) if one + other > 0 else math.nan


def share_of_sizes(source: NDArray[np.floating], prefix: NDArray[np.floating]) -> float:
    """``Σ|source| / (Σ|source| + Σ|prefix|)``: whatever the signs of the tokens."""
    return share_of_sums(np.abs(source), np.abs(prefix))


# Special dimensions of a norm: the few with the lowest γ, and those with an outlying one.


SHARE = 0.01
DEVIATIONS = 3.0


def special_dimensions(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The 1 % of dimensions with the lowest `gamma` (at least one), and all the others sorted.

    γ is that of the norm behind the feed-forward block (Kobayashi et al. 2024, section 6).
    """
    count = max(1, round(SHARE * len(gamma)))
    order = gamma.argsort()
    return order[:count], order[count:].sort().values


def outlier_dimensions(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """The dimensions whose γ is further from the mean than 3σ of all γ, and all the others.

    Kovaleva et al. 2021 call them outliers; there may be none.
    """
    spread = gamma.double() - gamma.double().mean()
    far = spread.abs() > DEVIATIONS * spread.square().mean().sqrt()
    return far.nonzero().flatten(), (~far).nonzero().flatten()


# Maps of words from maps of subwords.


def merge_words(
    maps: NDArray[Any],
    targets: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None = None,
) -> NDArray[Any]:
    """Merge tokens into words: columns of a word summed, rows averaged; (…, i, j) → (…, w, v).

    `targets` and `sources` (by default the same) are the places of each word's tokens.
    """
    maps = widened(maps)
    rows = membership(targets, maps.shape[-2], maps.dtype)
    columns = rows if sources is None else membership(sources, maps.shape[-1], maps.dtype)
    mean = rows / rows.sum(axis=1, keepdims=True)
    return mean @ maps @ columns.T


def sum_words(array: NDArray[Any], groups: Sequence[Sequence[int]], axes: int = 1) -> NDArray[Any]:
    """Sum the tokens of each word along the last one or two axes, (…, j) → (…, w)."""
    members = membership(groups, array.shape[-1], array.dtype)
    array = array @ members.T
    return members @ array if axes == 2 else array


def membership(groups: Sequence[Sequence[int]], n: int, dtype: Any = np.float64) -> NDArray[Any]:
    """Whether each of n tokens belongs to each word, (w, i), as 1 and 0."""
    members = np.zeros((len(groups), n), dtype=dtype)
    for index, group in enumerate(groups):
        members[index, list(group)] = 1
    return members


# Maps of single layers multiplied into one map through all of them (rollout).


def _rows_to_one(maps: NDArray[Any]) -> NDArray[Any]:
    """Maps whose rows sum to 1; a row of zeros stays as it is."""
    return normalise(maps, "target")


def rollout(
    maps: NDArray[Any], *, residual: float = 0.0, normalise: bool = True
) -> NDArray[np.float64]:
    """``R_ℓ = Â_ℓ R_{ℓ−1}`` with ``Â = (1 − r) A + r I``; (layer, i, j) → (layer, i, j).

    Each row of A first sums to 1, unless `normalise` says no; a row of zeros stays as it is. The
    residual's share r is ½ for attention weights (Abnar & Zuidema 2020) and 0 for maps
    that have the residual connection in them. In float64: a product of many layers that are not
    normalised may leave the range of float32.
    """
    a = np.asarray(maps, dtype=np.float64)
    if a.ndim != 3 or a.shape[1] != a.shape[2] or not a.shape[0]:
        raise InputError(f"a rollout takes maps [layer, target, source], not of shape {a.shape}")
    if not 0 <= residual < 1:
        raise InputError(f"the residual's share of a rollout is from 0 to below 1, not {residual}")
    if normalise:
        a = _rows_to_one(a)
    if residual:
        a = (1 - residual) * a + residual * np.eye(a.shape[-1])
    return _through_layers(a)


def reachable(allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which sources of the first layer each target of a layer may draw on, [layer, target, source].

    A layer's own token always passes, by the residual connection.
    """
    return _through_layers(allowed | np.eye(allowed.shape[-1], dtype=bool)) > 0


def pair_rollout(
    maps: NDArray[Any], other: NDArray[np.bool_], encoder: NDArray[Any]
) -> NDArray[np.float64]:
    """``R_ℓ = C_ℓ [E 0] + D_ℓ R_{ℓ−1}``, ``R_{−1} = [0 I]``; (layer, i, j) → (layer, i, j).

    Each row of a decoder's map sums to 1 over both sequences: C are its columns of the `other` one
    (j), D those of the targets. E (k, k) is the rollout of the encoder's layers, up to the last.
    """
    return _through_layers(_rows_to_one(np.asarray(maps, np.float64)), other, encoder)


def pair_reachable(
    allowed: NDArray[np.bool_], other: NDArray[np.bool_], encoder: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which inputs of either sequence each target of a decoder's layer may draw on."""
    steps = allowed.copy()
    steps[:, :, ~other] |= np.eye(allowed.shape[1], dtype=bool)
    return _through_layers(steps, other, encoder) > 0


def _through_layers(
    maps: NDArray[Any],
    other: NDArray[np.bool_] | None = None,
    encoder: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """Maps multiplied from the first layer up to each, with an encoder's below `other` columns.

    Of boolean maps the products are 1 where there is a way, and 0 elsewhere.
    """
    n = maps.shape[1]
    other = np.zeros(n, dtype=bool) if other is None else other
    below, rolled = np.zeros((n, len(other))), []
    below[:, ~other] = np.eye(n)
    for layer in np.asarray(maps, np.float64):
        below = layer[:, ~other] @ below
        if encoder is not None:
            below[:, other] += layer[:, other] @ np.asarray(encoder, np.float64)
        if maps.dtype == bool:
            below = (below > 0).astype(np.float64)
        rolled.append(below)
    return np.stack(rolled)
