"""What is evaluated unless told otherwise, by the model and the data's columns; refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.errors import InputError, MissingDependencyError, NormLensError
from normlens.faithfulness.columns import Columns
from normlens.faithfulness.methods.names import NAMES, ROLLOUT
from normlens.faithfulness.methods.registry import method
from normlens.faithfulness.protocols.evidence import Evidence
from normlens.faithfulness.protocols.registry import PROTOCOLS, get, of_kind
from normlens.faithfulness.questions import CLASSES, COSINE, NEXT_TOKEN, class_head
from normlens.layers import CAUSAL, SEQUENCES
from normlens.models.base import NoHead, read_head
from normlens.scopes import shortest

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class DefaultMethods:
    """The built-in methods that a model and this machine allow, and what a missing package bars."""

    allowed: tuple[str, ...]
    missing: tuple[str, ...]  # reasons, one for each method that needs another package


def default_methods(lens: Lens) -> DefaultMethods:
    """Every built-in method that this model allows, with the rollout of its whole layer."""
    allowed, missing = [], []
    for name in _names(lens):
        try:
            method(name).needs(lens)
        except MissingDependencyError as error:
            missing.append(str(error))
        except NormLensError:
            continue
        else:
            allowed.append(name)
    return DefaultMethods(tuple(allowed), tuple(missing))


def _names(lens: Lens) -> list[str]:
    whole = shortest(lens.scopes).get(lens.scopes[-1], lens.scopes[-1])
    names = list(NAMES)
    names.insert(names.index("rollout-weights"), f"{ROLLOUT}{whole.lower()}")
    return names


def default_kind(lens: Lens, pairs: bool = False) -> str:
    """The kind of question that a model answers: classes, next tokens, or cosines of pairs."""
    task = _task(lens)
    kinds = {SEQUENCES: CLASSES, CAUSAL: NEXT_TOKEN}
    if task in kinds:
        return kinds[task]
    if pairs:
        return COSINE
    raise InputError(
        f"{lens.name} is a {task}; evaluate a classifier, a causal language model, or a sentence "
        "encoder on pairs of texts (--pair-column)"
    )


def default_protocols(lens: Lens, kind: str, columns: Columns) -> tuple[str, ...]:
    """The protocols of a kind that the model's tokens and the data's columns allow."""
    allowed, reasons = [], []
    for name in of_kind(kind):
        if name == Evidence.name and columns.evidence is None:
            continue
        try:
            get(name).on(lens)
        except InputError as error:
            reasons.append(str(error))
        else:
            allowed.append(name)
    if not allowed:
        raise InputError(reasons[0])
    return tuple(allowed)


#: What each kind of question is asked of.
_MODELS = {
    CLASSES: "classifiers",
    NEXT_TOKEN: "causal language models",
    COSINE: "sentence encoders on pairs of texts",
}


def check_columns(kind: str, protocols: Sequence[str], columns: Columns) -> None:
    """Refuse columns that the kind of question does not read, and evidence without its column."""
    if columns.label is not None and kind != CLASSES:
        raise InputError(f"labels are for classifiers, and {protocols[0]} is for {_MODELS[kind]}")
    if columns.good is not None and kind != NEXT_TOKEN:
        raise InputError(
            f"good and bad next words are for causal language models, and {protocols[0]} is for "
            f"{_MODELS[kind]}"
        )
    if Evidence.name in protocols and columns.evidence is None:
        raise InputError(
            "evidence needs the word of each text that must decide; give --evidence-column, with "
            "--good-column and --bad-column"
        )


def check_kind(lens: Lens, kind: str, protocols: Sequence[str]) -> None:
    """Refuse protocols that the model does not allow."""
    expected = {CLASSES: SEQUENCES, NEXT_TOKEN: CAUSAL}.get(kind)
    task = _task(lens)
    if expected not in (None, task):
        raise InputError(
            f"{protocols[0]} is for {_MODELS[kind]}, and {lens.name} is a {task}; choose among "
            f"{', '.join(PROTOCOLS)} what fits it, or leave --protocols out"
        )
    if kind == CLASSES:
        class_head(lens)


def _task(lens: Lens) -> str:
    try:
        return read_head(lens.adapter).task
    except NoHead:
        return "model without a head"
