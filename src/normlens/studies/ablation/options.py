"""What an ablation is asked for: the vocabulary, the options, and the folder of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError, OptionError, check_choice
from normlens.options import FROM_ZERO, parse_layers, whole_number

# The vocabulary of ablations: which component, replaced in what way, in which layers.
#
# Components have the names of their layer's steps (`normlens.layers.Layer.step_names`): ``ATTN``,
# ``FF``, ``RES1``, ``RES2``, ``LN1``, ``LN2``, and in brackets what stands before the attention,
# ``(LN)``. ``(LN)FF`` is the norm that a parallel feed-forward block has for itself; where it
# shares the attention's, both read what replaces ``(LN)``. ``LAYER`` is the whole layer: *zero*
# hands its input on, while *mean* and *resample* replace its whole output, the residual stream
# included. Nothing here needs torch.


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


# The names of losses; nothing here needs torch.


NEXT_TOKEN, MASKED, CLASSES, DRIFT = "next-token", "masked", "classes", "drift"
#: The loss of the model's head.
AUTO = "auto"
NAMES = (AUTO, NEXT_TOKEN, MASKED, CLASSES, DRIFT)


# What an ablation is asked for: what its numbers depend on, model and data included.


EACH, ALL = "each", "all"
#: Sequences of the first pass where no other data is named, and the part of the data that they may
#: be at most.
REFERENCE, LARGEST_PART = 256, 5
#: Fewer sequences have no interval that would mean anything.
FEWEST = 10
FEWEST_RESAMPLES = 100


@dataclass(frozen=True)
class LayerChoice:
    """Which layers are ablated (None: all): each alone, all of them together, or both."""

    layers: list[int] | None
    each: bool
    together: bool


def parse_layer_choice(text: str) -> LayerChoice:
    """``"each"``, ``"all"``, ``"0,3-5"``, or layers and a word: ``"0,3-5,all"``.

    The words say how (each layer alone, all of them at once; both without a word), the numbers
    say which layers.
    """
    parts = [part.strip().lower() for part in text.split(",")]
    words = [part for part in parts if part in (EACH, ALL)]
    numbers = [part for part in parts if part not in (EACH, ALL)]
    try:
        layers = parse_layers(",".join(numbers)) if numbers else None
    except InputError as error:
        raise OptionError(
            "layers",
            f"cannot read {{option}} {text!r}; write for example each, all, 0,3-5 or 0,3-5,all "
            f"({FROM_ZERO})",
        ) from error
    return LayerChoice(layers, EACH in words or not words, ALL in words or not words)


@dataclass(frozen=True)
class AblateOptions:
    """Everything that the numbers of an ablation depend on, model and data included.

    - `components` are some of ATTN, FF, LAYER, RES1, RES2, LN1, LN2, … as the layers have them,
      `kinds` some of the ways in which they are replaced (None: all that the model has): zero,
      mean, resample; of norms frozen-sigma, no-affine, left-out; of the norm behind FF lowest-gamma
      and outliers, beside which `draws` random dimensions stand.
    - `layers` is "each" (every layer alone), "all" (at once), layers such as "0,3-5" counted from
      0, or layers and a word.
    - `loss` is that of the model's head by default ("auto"): next-token, masked, classes, or
      without a head drift, that of the sentence vector. `label` and `score` are columns of the data
      with right classes (default: label) and gold scores of pairs (default: score, where there is
      one).
    - `reference` is data for the first pass, which gathers means, deviations and vectors to draw
      from. By default the first `reference_size` sequences of the data, but no more than a fifth of
      it, are set apart for it and not measured.
    - `seed` is that of masks, draws and resamples, of which every bootstrap has `resamples`.
    - `limit`, `max_length`, `column`, `pair_column`, `paragraphs` and `revision` are those of a
      run.
    """

    model: str
    data: str
    components: str | Sequence[str] | None = None
    kinds: str | Sequence[str] | None = None
    layers: str = f"{EACH},{ALL}"
    loss: str = AUTO
    label: str | None = None
    score: str | None = None
    reference: str | None = None
    reference_size: int = REFERENCE
    draws: int = DRAWS
    seed: int = 0
    resamples: int = 10_000
    revision: str | None = None
    limit: int | None = None
    max_length: int = 128
    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False

    def __post_init__(self) -> None:
        check_choice(self.loss, NAMES, "loss")
        parse_layer_choice(self.layers)
        for name in ("components", "kinds"):
            if (named := getattr(self, name)) is not None:
                object.__setattr__(self, name, parse_names(named))
        for kind in self.kinds or ():
            if kind not in KINDS:
                some = f"choose some of: {', '.join(KINDS)}"
                raise OptionError("kinds", f"unknown {{option}} {kind!r}; {some}")
        for name in ("components", "kinds"):
            if getattr(self, name) == ():
                raise OptionError(name, "{option} names nothing; leave it out to take all")
        for name in ("reference_size", "draws", "max_length", "limit"):
            if (value := getattr(self, name)) is not None:
                whole_number(value, name, 1)
        whole_number(self.seed, "seed")
        if whole_number(self.resamples, "resamples") < FEWEST_RESAMPLES:
            raise OptionError("resamples", f"{{option}} must be at least {FEWEST_RESAMPLES}")

    @property
    def gathers(self) -> bool:
        """Whether a kind may be among the ablations that needs a first pass over other data."""
        return any(kind in GATHERED_KINDS for kind in self.kinds or KINDS)
