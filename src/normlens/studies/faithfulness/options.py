"""What an evaluation is asked for, the columns it reads, and its tables; none needs torch."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError, require
from normlens.options import Option, whole_number

# What an evaluation is asked for beside the options of a run.


#: Options of a run that an evaluation takes; the others are its own.
RUN_FIELDS: tuple[str, ...] = ("limit", "max_length", "truncate", "seed", "column", "pair_column")
RUN_FIELDS += ("paragraphs", "revision", "block_size")


@dataclass(frozen=True)
class EvaluateOptions:
    """What is evaluated. None is all that the model, the data and this machine allow.

    - `methods` by their names, ``rollout-SCOPE``, or your own as ``my_module:my_function``.
    - `protocols` by their names.
    - `label_column` is a classifier's label, for the accuracy beside AOPC: a name or a number.
    - `good_column` and `bad_column` are two next words of which a causal model should prefer the
      first, `evidence_column` the word of the text that must decide. BLiMP's own columns are
      recognised. Without them, the two most probable next tokens are compared.
    - `steps` are those of integrated gradients.
    """

    methods: tuple[str, ...] | None = Option(
        "Methods by name, separated by commas; your own as module:function. Default: all that the "
        "model and this machine allow.",
        metavar="LIST",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str] | None",
    ).field(None)
    protocols: tuple[str, ...] | None = Option(
        "Some of aopc,comprehensiveness,sufficiency (classifiers), evidence,contrast-drop-end,"
        "contrast-drop-random (causal models), cosine-aopc (pairs); or citations (questions with "
        "their sources). Default: all that fit, without citations.",
        metavar="LIST",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str] | None",
    ).field(None)
    label_column: str | None = Option("The column of a classifier's label.", metavar="NAME").field(
        None
    )
    good_column: str | None = Option(
        "The column of the next word that should be preferred.", metavar="NAME"
    ).field(None)
    bad_column: str | None = Option(
        "The column of the next word that it is preferred to.", metavar="NAME"
    ).field(None)
    evidence_column: str | None = Option(
        "The column of the word of the text that must decide.", metavar="NAME"
    ).field(None)
    steps: int = Option("Steps of integrated gradients.", metavar="N").field(50)

    def __post_init__(self) -> None:
        whole_number(self.steps, "steps", 1)
        for what in ("method", "protocol"):
            if (named := getattr(self, f"{what}s")) is not None:
                listed = parse_names(named)
                twice = f"a {what} is named twice: {', '.join(listed)}"
                require(len(set(listed)) == len(listed), twice)
                nothing = f"no {what} is chosen; leave --{what}s out to take all that fit the model"
                require(listed, nothing)
                object.__setattr__(self, f"{what}s", listed)
        for name in self.methods or ():
            ablations_of(name) if CITATIONS in (self.protocols or ()) else checked_name(name)
        _ = self.columns  # refuses columns that do not belong together

    @property
    def columns(self) -> Columns:
        """The columns of the data that are read beside the text."""
        named = (self.label_column, self.good_column, self.bad_column, self.evidence_column)
        return Columns(*named)


# Columns of the data that an evaluation reads beside the text.


#: The columns of BLiMP's own files: the text, the two next words, and the word that must decide.
BLIMP = ("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "target")


@dataclass(frozen=True)
class Columns:
    """The columns of the label, of the two next words, and of the word that must decide."""

    label: str | None = None
    good: str | None = None
    bad: str | None = None
    evidence: str | None = None

    def __post_init__(self) -> None:
        if (self.good is None) != (self.bad is None):
            raise InputError("two next words belong together; give --good-column and --bad-column")
        if self.evidence is not None and self.good is None:
            raise InputError("evidence needs two next words; give --good-column and --bad-column")

    @property
    def given(self) -> dict[str, str]:
        """The columns that are read, by their purpose."""
        return {name: column for name, column in vars(self).items() if column is not None}

    @property
    def settings(self) -> dict[str, str]:
        """The columns that are read, by the names of their options."""
        return {f"{name}_column": column for name, column in self.given.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        return tuple(dict.fromkeys(self.given.values()))


# The names of the methods; nothing here needs torch.


#: Before a scope's name, the method that rolls out that scope: "rollout-LN1".
ROLLOUT = "rollout-"

#: Methods that have a name of their own, in the order of reports.
NAMES = (
    "normlens",
    "normlens-layers",
    "normlens-gradient",
    "normlens-ig-bias",
    "vectors",
    "rollout-weights",
    "globenc",
    "alti",
    "value-zeroing",
    "gradient-x-input",
    "integrated-gradients",
    "leave-one-out",
    "random",
    "first-token",
)


def checked_name(name: str) -> str:
    """A method's name as it is written, or an error that lists the names.

    Whether a model has the scope of a rollout, and what a user's module holds, is seen later.
    """
    wanted = str(name).strip()
    if ":" in wanted:
        return wanted
    lower = wanted.lower()
    if lower in NAMES or (lower.startswith(ROLLOUT) and lower != ROLLOUT):
        return lower
    raise InputError(
        f"unknown method {name!r}; choose one of: {', '.join(NAMES)}, {ROLLOUT}SCOPE with a scope "
        f"of the model ({ROLLOUT}LN1), or your own as my_module:my_function"
    )


# Which tokens a protocol changes first, as the tables of an evaluation call them.


MOST, LEAST = "most", "least"


# Citations: which sources of a question made its answer.


CITATIONS = "citations"
#: Columns of the data: questions, the sources of each as a list of texts, and where they are
#: known the places of those that hold the right answer, and the answer.
QUESTION_COLUMN, SOURCES_COLUMN, GOLD_COLUMN, ANSWER_COLUMN = [
    "question",
    "sources",
    "gold",
    "answer",
]
CITATION_METHODS = (
    "normlens",
    "normlens+8",
    "normlens+32",
    "contextcite-8",
    "contextcite-16",
    "contextcite-32",
    "leave-one-out",
    "attention",
    "gradient-x-input",
    "random",
)
#: Methods that need a package of their own; they are measured where they are named.
_PACKAGES = ("flashtrace",)


def ablations_of(name: str) -> int:
    """How many random subsets of the sources a method takes; raises for a name that is none."""
    for start in ("normlens+", "contextcite-"):
        number = name.removeprefix(start)
        if number != name and number.isdecimal() and int(number) > 2:
            return int(number)
    if name in (*CITATION_METHODS, *_PACKAGES) and not name[-1].isdecimal():
        return 0
    known = ", ".join((*CITATION_METHODS, *_PACKAGES))
    raise InputError(f"unknown method {name!r} of citations; choose among {known}")
