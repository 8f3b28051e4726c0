"""Columns of the data that an evaluation reads beside the text."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.errors import InputError

#: The columns of BLiMP's own files: the text, the two next words, and the word that must decide.
BLIMP_TEXT, BLIMP_GOOD, BLIMP_BAD = (
    "one_prefix_prefix",
    "one_prefix_word_good",
    "one_prefix_word_bad",
)
BLIMP_EVIDENCE = "target"


@dataclass(frozen=True)
class Columns:
    """The columns of the label, of the two next words, and of the word that must decide."""

    label: str | None = None
    good: str | None = None
    bad: str | None = None
    evidence: str | None = None

    def __post_init__(self) -> None:
        if (self.good is None) != (self.bad is None):
            raise InputError(
                "a good and a bad next word belong together; give both --good-column and "
                "--bad-column"
            )
        if self.evidence is not None and self.good is None:
            raise InputError(
                "evidence decides between two next words; give --good-column and --bad-column, too"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        every = (self.label, self.good, self.bad, self.evidence)
        return tuple(dict.fromkeys(name for name in every if name is not None))
