"""What an alignment is asked for, its tables, gold links and link files; none needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from normlens.corpus.runs.options import parse_names
from normlens.errors import OptionError, check_choice, require

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
RUN_FIELDS: tuple[str, ...] = ("limit", "max_length", "seed", "column", "pair_column")
RUN_FIELDS += ("paragraphs", "revision", "block_size")


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

    scopes: str | Sequence[str] = DEFAULT_SCOPES
    layers: int | Iterable[int] | None = None
    ways: str | Sequence[str] = WAYS
    head: int | str | None = None
    gold: str | os.PathLike[str] | None = None
    gold_first: int | None = None

    def __post_init__(self) -> None:
        for name in ("scopes", "ways"):
            object.__setattr__(self, name, parse_several(getattr(self, name)))
        if isinstance(self.layers, int):
            object.__setattr__(self, "layers", [self.layers])
        if isinstance(self.head, str) and self.head != ALL:
            if not self.head.isdecimal():
                message = f"{{option}} is a number from 0 or 'all', not {self.head!r}"
                raise OptionError("head", message)
            object.__setattr__(self, "head", int(self.head))
        require(self.scopes, "no scope is chosen; leave it out to take the cross-attention's")
        once = bool(self.ways) and len(set(self.ways)) == len(self.ways)
        require(once, f"choose the way 'input' or 'output' once, not {self.ways!r}")
        for way in self.ways:
            check_choice(way, WAYS, "way")
        if self.gold_first is not None:
            require(self.gold is not None, "gold_first says how a gold file counts; give gold, too")
            if self.gold_first not in FIRST_WORDS:
                raise OptionError("gold_first", f"{{option}} is 0 or 1, not {self.gold_first}")

    @property
    def settings(self) -> dict[str, Any]:
        """The options of the measure, as a manifest writes them; those of gold links are apart."""
        layers = None if self.layers is None else sorted({*self.layers})  # type: ignore[misc]
        named = {"scopes": list(self.scopes), "layers": layers, "ways": list(self.ways)}
        return {**named, "head": self.head}
