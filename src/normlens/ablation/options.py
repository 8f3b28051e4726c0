"""What an ablation is asked for: what its numbers depend on, model and data included."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from normlens.ablation.kinds import CONTROLS, DRAWS, GATHERED_KINDS, KINDS
from normlens.ablation.loss_names import AUTO, NAMES
from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError, OptionError, check_choice, listed
from normlens.options import (
    FROM_ZERO,
    REVISION,
    LayerRanges,
    Option,
    at_least_one,
    parse_layers,
    whole,
)

EACH, ALL = "each", "all"
#: Sequences of the first pass where no other data is named, and the part of the data that they may
#: be at most.
REFERENCE, LARGEST_PART = 256, 5
#: Fewer sequences have no interval that would mean anything.
FEWEST = 10
FEWEST_RESAMPLES = 100
#: Options that only change what is made of the runs.
_OF_THE_REPORT = ("resamples",)


@dataclass(frozen=True)
class LayerChoice:
    """Which layers are ablated (None: all): each alone, all of them together, or both."""

    layers: LayerRanges | None
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

    - `components` and `kinds` (None: all that the model has) and `layers` choose ablations; `draws`
      random dimensions stand beside each kind of special ones.
    - `loss` is that of the model's head by default: next-token NLL, masked NLL, the classifier's
      loss, or without a head the drift of the sentence vector. `label` and `score` are columns of
      the data with right classes and gold scores.
    - `reference` is data for the first pass, which gathers means, deviations and vectors to draw
      from. By default the first `reference_size` sequences of the data, but no more than a fifth of
      it, are set apart for it and not measured.
    - `limit`, `max_length`, `column`, `pair_column` and `paragraphs` say how data is read, as in a
      run.
    """

    model: str
    data: str
    components: tuple[str, ...] | None = Option(
        "Some of ATTN, FF, LAYER, RES1, RES2, LN1, LN2, … as the layers have them, separated by "
        "commas. Default: all.",
        metavar="LIST",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str] | None",
    ).field(None)
    kinds: tuple[str, ...] | None = Option(
        f"Some of {', '.join(kind for kind in KINDS if kind not in CONTROLS.values())}, separated "
        "by commas. Default: all.",
        metavar="LIST",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str] | None",
    ).field(None)
    layers: str = Option(
        f"each (every layer alone), all (at once), layers such as 0,3-5, or layers and a word; "
        f"{FROM_ZERO}.",
        metavar="LIST",
    ).field(f"{EACH},{ALL}")
    loss: str = Option(f"{listed(NAMES, 'or')}.", metavar="NAME").field(AUTO)
    label: str | None = Option(
        "The column of right classes, for a classifier's loss. Default: label.", metavar="NAME"
    ).field(None)
    score: str | None = Option(
        "The column of gold scores of pairs, for a sentence encoder. Default: score, where there "
        "is one.",
        metavar="NAME",
    ).field(None)
    reference: str | None = Option(
        "Other data for the first pass. Default: the first sequences of the data, set apart.",
        metavar="DATA",
    ).field(None)
    reference_size: int = Option(
        "Sequences of the first pass; at most a fifth of the data, where they are taken from it.",
        metavar="N",
    ).field(REFERENCE)
    draws: int = Option("Random draws of dimensions beside the special ones.", metavar="N").field(
        DRAWS
    )
    seed: int = Option("Of masks, draws and resamples.", metavar="N").field(0)
    resamples: int = Option("Of every bootstrap.", metavar="N").field(10_000)
    revision: str | None = REVISION.field(None)
    limit: int | None = None
    max_length: int = 128
    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False

    def __post_init__(self) -> None:
        check_choice(self.loss, NAMES, "loss")
        parse_layer_choice(self.layers)
        for kind in self.kinds or ():
            if kind not in KINDS:
                choices = ", ".join(KINDS)
                raise OptionError(
                    "kinds", f"unknown {{option}} {kind!r}; choose some of: {choices}"
                )
        for name in ("components", "kinds"):
            if getattr(self, name) == ():
                raise OptionError(name, "{option} names nothing; leave it out to take all")
        for name in ("reference_size", "draws", "max_length", "limit"):
            if (value := getattr(self, name)) is not None:
                at_least_one(value, name)
        whole(self.seed, "seed")
        if whole(self.resamples, "resamples") < FEWEST_RESAMPLES:
            raise OptionError(
                "resamples",
                f"{{option}} must be at least {FEWEST_RESAMPLES}, not {self.resamples}",
            )

    @property
    def gathers(self) -> bool:
        """Whether a kind may be among the ablations that needs a first pass over other data."""
        return any(kind in GATHERED_KINDS for kind in self.kinds or KINDS)

    def check_continues(self, other: AblateOptions) -> None:
        """Refuse to go on with other options than those that a folder's runs were begun with."""
        for item in fields(self):
            then, now = getattr(other, item.name), getattr(self, item.name)
            if item.name not in _OF_THE_REPORT and then != now:
                raise InputError(
                    f"the folder holds results with {item.name.replace('_', ' ')} {then!r}, not "
                    f"{now!r}; choose another --out"
                )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, contents: dict[str, Any]) -> AblateOptions:
        names = {item.name for item in fields(cls)}
        values = {name: value for name, value in contents.items() if name in names}
        for name in ("components", "kinds"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return cls(**values)
