"""A reproduction's settings and folder, its experiments, and the numbers that the papers report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normlens.corpus.runs.options import code_named, parse_names
from normlens.errors import (
    InputError,
    OptionError,
    check_choice,
    listed,
    require,
    valid_choice,
)
from normlens.options import REVISION, Option, check_same, options_of, whole_number
from normlens.studies.faithfulness.options import EvaluateOptions

# The settings of a reproduction.


#: The papers' experiments.
KINDS = ("ff", "mixing")
ALL = "all"  # of the papers
#: Experiments that no paper has, and that are done only where they are asked for by name.
EVALUATE, ABLATE = "evaluate", "ablate"
PARTS = (EVALUATE, ABLATE)
EVERY = (*KINDS, *PARTS)
MASK = 0.12  # Kobayashi et al. 2021 and 2024
#: What related pairs are compared with: all other pairs, as in the paper, or unrelated ones alone.
PAPER, UNRELATED = "paper", "unrelated"
#: what the runs depend on; the rest only changes what is made of them
_OF_RUNS = ("model", "revision", "column", "pair_column", "paragraphs", "max_length", "mask")
_OF_RUNS += ("seed", "relations")
#: Options of the optional parts, and the parts that read each of them.
OF_PARTS = {"methods": (EVALUATE,), "label_column": PARTS}
OF_PARTS |= {"components": (ABLATE,), "ablation_kinds": (ABLATE,)}
_LISTS_OF_PARTS = ("methods", "components", "ablation_kinds")


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers of a report depend on, model and data included.

    - `seed` is that of masks, samples and resamples; every bootstrap has `resamples`.
    - Pairs of subwords count that occur at least `min_count` times; the `top` most amplified of a
      layer are listed. `layer` is that of the histograms, counted from 1 as in the papers (None:
      the clearest).
    - `others` says what related pairs are compared with: "paper" (all pairs that are not of their
      kind, special tokens included) or "unrelated" (ordinary tokens with nothing in common).
      `relations` are your own relations between tokens, as ``module:name`` of functions of an item
      that give (n, n) booleans.
    - `ranks` is a file of frequency ranks of subwords, ``rank count id`` per line (None: those of
      the corpus); `sentence` is the text of the attention maps, "first|second" a pair.
    - `methods` are those of `evaluate`, `components` and `ablation_kinds` those of `ablate`.
    - `limits`, `column`, `pair_column`, `paragraphs`, `max_length` and `revision` are of the data
      and the model, as in a run.
    """

    kinds: tuple[str, ...]
    model: str
    data: tuple[str, ...]
    revision: str | None = REVISION.field(None)
    column: str | None = None  # of the data, as in a run
    pair_column: str | None = None
    paragraphs: bool = False
    limits: dict[str, int] = field(default_factory=dict)  # data → its first so many sequences
    max_length: int = 128
    mask: float = Option(
        "Masked share in the experiments that mask; causal models are never masked.",
        metavar="SHARE",
    ).field(MASK)
    seed: int = 0
    resamples: int = 10_000
    min_count: int = 2
    top: int = 10
    layer: int | None = None
    others: str = PAPER
    relations: tuple[str, ...] = ()
    ranks: str | None = None
    sentence: str | None = None
    methods: tuple[str, ...] | None = options_of(EvaluateOptions)["methods"].field(None)
    label_column: str | None = Option(
        "The column of a classifier's label. Default: none for evaluate, label for ablate.",
        metavar="NAME",
    ).field(None)
    components: tuple[str, ...] | None = Option(
        "Of ablate: some of ATTN, FF, LAYER, RES1, LN1, …, separated by commas. Default: all.",
        metavar="LIST",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str] | None",
    ).field(None)
    ablation_kinds: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in _LISTS_OF_PARTS:  # they may be given as "first,second"
            if (named := getattr(self, name)) is not None:
                object.__setattr__(self, name, parse_names(named))
        require(self.kinds, f"name the experiments: some of {listed(EVERY)}")
        require(self.data, "a reproduction needs --data")
        for kind in self.kinds:
            valid_choice(kind, EVERY, "experiments")
        check_choice(self.others, (PAPER, UNRELATED), "others")
        for name, least in (("resamples", 100), ("min_count", 1), ("top", 1), ("max_length", 2)):
            whole_number(getattr(self, name), name, least)
        if self.layer is not None:
            whole_number(self.layer, "layer", 1)
        for name, parts in OF_PARTS.items():
            value = getattr(self, name)
            # The flag has the short name, which the experiments have in Python.
            option = "kinds" if name == "ablation_kinds" else name
            if value == ():
                raise OptionError(option, "{option} names nothing; leave it out to take all")
            if value is not None and not set(parts) & set(self.kinds):
                raise OptionError(
                    option,
                    f"{{option}} needs {listed(parts, 'or')} among the experiments",
                )

    def joined(self, other: Settings) -> Settings:
        """Merge these settings into a folder begun with `other`; refuse to mix two kinds."""
        # What only changes what is made of the runs may differ.
        check_same(other, self, _OF_RUNS)
        of_parts = {name: self._of_part(name, other) for name in OF_PARTS}
        for data in self.data:
            then, now = other.limits.get(data), self.limits.get(data)
            if data in other.data and then != now:
                raise InputError(
                    f"{data!r} has {_sequences(then)} in this folder; choose another --out"
                )
        every = parse_kinds((*self.kinds, *other.kinds))
        data = tuple(dict.fromkeys(other.data + self.data))
        limits = other.limits | self.limits
        return replace(self, kinds=every, data=data, limits=limits, **of_parts)

    def _of_part(self, name: str, other: Settings) -> Any:
        """Return an option of an optional part; the folder's value is the default."""
        then, now = getattr(other, name), getattr(self, name)
        if now is None:
            if code_named({name: then}):
                raise InputError(f"name your own code: {EVALUATE} … --methods {','.join(then)}")
            return then
        if set(OF_PARTS[name]) & set(other.kinds):
            check_same(other, self, [name])
        return now


def parse_kinds(kinds: str | Sequence[str]) -> tuple[str, ...]:
    """Experiments by name, in the report's order: "all" is both papers', "ff,evaluate" is two."""
    named = parse_names(kinds)
    every = {kind for name in named for kind in (KINDS if name == ALL else (name,))}
    return tuple(sorted(every, key=(*EVERY, *named).index))


def _sequences(limit: int | None) -> str:
    return "all sequences" if limit is None else f"the first {limit} sequences"
