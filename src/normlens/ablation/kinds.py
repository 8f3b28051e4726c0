"""The vocabulary of ablations: which component, replaced in what way, in which layers.

Components have the names of their layer's steps (`normlens.layers.Layer.step_names`): ``ATTN``,
``FF``, ``RES1``, ``RES2``, ``LN1``, ``LN2``, and in brackets what stands before the attention,
``(LN)``. ``(LN)FF`` is the norm that a parallel feed-forward block has for itself; where it shares
the attention's, both read what replaces ``(LN)``. ``LAYER`` is the whole layer: *zero* hands its
input on, while *mean* and *resample* replace its whole output, the residual stream included.
Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from normlens.errors import InputError
from normlens.scopes import layers_in_words

LAYER = "LAYER"
#: The component of the model as it is, to which every ablation is compared.
INTACT = "intact"
#: The norm that a parallel feed-forward block has for itself.
PARALLEL_NORM = "(LN)FF"

# Of a block (ATTN, CROSS, FF), a whole layer, or the vector that a residual connection adds.
ZERO, MEAN, RESAMPLE = "zero", "mean", "resample"
VECTOR_KINDS = (ZERO, MEAN, RESAMPLE)

# Of a norm.
FROZEN_SIGMA, NO_AFFINE, LEFT_OUT = "frozen-sigma", "no-affine", "left-out"
NORM_KINDS = (FROZEN_SIGMA, NO_AFFINE, LEFT_OUT)

# Of some dimensions of the norm behind the feed-forward block, and of as many random ones.
LOWEST_GAMMA, OUTLIERS = "lowest-gamma", "outliers"
RANDOM_LOWEST_GAMMA, RANDOM_OUTLIERS = "random-lowest-gamma", "random-outliers"
SPECIAL_KINDS = (LOWEST_GAMMA, OUTLIERS)
#: The control of each kind of special dimensions.
CONTROLS = {LOWEST_GAMMA: RANDOM_LOWEST_GAMMA, OUTLIERS: RANDOM_OUTLIERS}
DIMENSION_KINDS = (*SPECIAL_KINDS, *CONTROLS.values())

KINDS = (*VECTOR_KINDS, *NORM_KINDS, *DIMENSION_KINDS)
#: Kinds that need what a first pass over other data has gathered.
GATHERED_KINDS = (MEAN, RESAMPLE, FROZEN_SIGMA)
#: Random draws of dimensions for each kind of special ones.
DRAWS = 20


def is_norm(component: str) -> bool:
    """Whether a component's name is that of a norm."""
    return "LN" in component


def is_residual(component: str) -> bool:
    """Whether a component's name is that of a residual connection."""
    return component.startswith("RES")


def kinds_of(component: str) -> tuple[str, ...]:
    """The ways in which a component of this name can be replaced.

    `DIMENSION_KINDS` are only for the norm behind the feed-forward block.
    """
    return (*NORM_KINDS, *DIMENSION_KINDS) if is_norm(component) else VECTOR_KINDS


@dataclass(frozen=True)
class Ablation:
    """One component, replaced in one way, in one layer or in several at once."""

    component: str
    kind: str
    layers: tuple[int, ...]
    draw: int | None = None  # of random dimensions, counted from 0

    def __post_init__(self) -> None:
        if self.kind not in kinds_of(self.component):
            raise InputError(
                f"{self.component} cannot be ablated by {self.kind!r}; choose one of: "
                f"{', '.join(kinds_of(self.component))}"
            )
        if not self.layers or tuple(sorted(set(self.layers))) != self.layers or self.layers[0] < 0:
            raise InputError(
                f"an ablation needs its layers in ascending order, each once, not {self.layers}"
            )
        if (self.draw is not None) != (self.kind in CONTROLS.values()):
            raise InputError(f"a draw belongs to the kinds {', '.join(CONTROLS.values())} alone")

    @property
    def first(self) -> int:
        """The first layer that it touches."""
        return self.layers[0]

    @property
    def layer(self) -> int | None:
        """Its layer; None where there are several."""
        return self.layers[0] if len(self.layers) == 1 else None

    @property
    def needs_statistics(self) -> bool:
        """Whether it needs what a first pass over other data has gathered."""
        return self.kind in GATHERED_KINDS

    def __str__(self) -> str:
        draw = "" if self.draw is None else f" (draw {self.draw})"
        return f"{self.component} {self.kind}{draw} in {layers_in_words(self.layers)}"
