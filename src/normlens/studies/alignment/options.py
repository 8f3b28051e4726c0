"""What an alignment is asked for, its tables, gold links and link files; none needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError, OptionError, check_choice
from normlens.options import FROM_ZERO, Option, parse_layers, split_keywords

# What an alignment is asked for beside the options of a run; nothing here needs torch.


#: The row of a target token: the one whose input it is (AWI), or the one that predicts it (AWO).
INPUT, OUTPUT = "input", "output"
WAYS = (INPUT, OUTPUT)
ALL = "all"
#: What stands for a scope where links are read from the contributions to a word's logits.
EXPLAIN = "EXPLAIN"
#: The paper's two maps: the weights of the cross-attention, and the norms of what it adds.
DEFAULT_SCOPES = ("CROSS-W", "CROSS-N")
#: The number that a gold file may give to a sentence's first word.
FIRST_WORDS = (0, 1)

#: Options of a run that an alignment takes; a sentence is never cut, because its words are counted.
RUN_FIELDS = (
    "limit",
    "max_length",
    "seed",
    "column",
    "pair_column",
    "paragraphs",
    "revision",
    "shard_size",
)


def parse_head(value: int | str) -> int | str:
    """A head's number from 0, or "all"."""
    if value == ALL:
        return ALL
    try:
        return int(value)
    except ValueError:
        raise OptionError(
            "head", f"{{option}} is a number from 0 or 'all', not {value!r}"
        ) from None


def parse_several(typed: Iterable[str] | str) -> tuple[str, ...]:
    """Names that were repeated or separated by commas."""
    listed = [typed] if isinstance(typed, str) else typed
    return tuple(name for given in listed for name in parse_names(given))


@dataclass(frozen=True)
class AlignOptions:
    """What is aligned.

    - `scopes` of the decoder that the source has reached; "all" is every one, and "explain" takes
      the contributions of `Lens.explain` to the logits of the target's tokens, by output and
      through the whole model. `layers` of the decoder from 0; None is all of them.
    - `ways`: "input" reads the row whose input is the target word (AWI), "output" the row that
      predicts it (AWO).
    - `head` is one head of the cross-attention, from 0, or "all" for every one beside them all.
    - `gold` is a file with a line of gold links for each sentence pair: ``i-j`` sure, ``ipj`` or
      ``i?j`` possible, the source's word first. `gold_first` is the number of a sentence's first
      word in it, 0 or 1; by default it is worked out.
    """

    scopes: tuple[str, ...] = Option(
        "Scope of the decoder such as CROSS-N, all of them (all), or contributions to logits "
        f"(explain); repeat it or separate names by commas. Default: {','.join(DEFAULT_SCOPES)}.",
        metavar="NAME",
        flags=("--scope", "-s"),
        typed=list[str],
        parse=parse_several,
        takes="str | Sequence[str]",
    ).field(DEFAULT_SCOPES)
    layers: Iterable[int] | None = Option(
        f"Layers of the decoder, for example 2 or 0,2-4; {FROM_ZERO}. Default: all.",
        metavar="LIST",
        flags=("--layer", "--layers"),
        typed=str,
        parse=parse_layers,
        takes="int | Iterable[int] | None",
    ).field(None)
    ways: tuple[str, ...] = Option(
        "input (the row that reads the target word) or output (the row that predicts it). "
        "Default: both.",
        metavar="WAY",
        flags=("--way",),
        typed=str,
        parse=parse_several,
        takes="str | Sequence[str]",
    ).field(WAYS)
    head: int | str | None = Option(
        "One head of the cross-attention, counted from 0, or all.",
        metavar="N",
        typed=str,
        parse=parse_head,
    ).field(None)
    gold: str | None = Option(
        "File of gold links, one line per pair: 1-1 (sure) 2p3 (possible).",
        metavar="FILE",
        takes="str | os.PathLike[str] | None",
    ).field(None)
    gold_first: int | None = Option(
        "Whether the gold file counts words from 0 or 1. Default: worked out.", metavar="0|1"
    ).field(None)

    def __post_init__(self) -> None:
        if not self.scopes:
            raise InputError("no scope is chosen; leave --scope out to take the cross-attention's")
        if not self.ways or len(set(self.ways)) != len(self.ways):
            raise InputError(f"choose --way input or --way output once, not {self.ways!r}")
        for way in self.ways:
            check_choice(way, WAYS, "way")
        if self.gold_first is not None:
            if self.gold is None:
                raise InputError("--gold-first says how a gold file counts; give --gold, too")
            if self.gold_first not in FIRST_WORDS:
                raise OptionError("gold_first", f"{{option}} is 0 or 1, not {self.gold_first}")

    def settings(self) -> dict[str, Any]:
        """The options of the measure, as a manifest writes them."""
        layers = None if self.layers is None else sorted(set(self.layers))
        return {
            "scopes": list(self.scopes),
            "layers": layers,
            "ways": list(self.ways),
            "head": self.head,
        }


def align_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords as those of `AlignOptions`, in the types of its fields, and those of a run."""
    own, of_run = split_keywords(given, AlignOptions)
    for name in ("scopes", "ways"):
        if name in own:
            own[name] = parse_several(own[name])
    if isinstance(own.get("layers"), int):
        own["layers"] = [own["layers"]]
    if isinstance(own.get("head"), str):
        own["head"] = parse_head(own["head"])
    if own.get("gold") is not None:
        own["gold"] = str(own["gold"])
    return own, of_run
