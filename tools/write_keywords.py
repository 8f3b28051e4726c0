"""Write src/normlens/_keywords.pyi, the types of options as keywords: run it after changing one.

An option is a field of a dataclass, and the signatures of functions show it
(`normlens.options.shows_fields_of`). Type checkers and editors read typed dictionaries instead:
these are written from the signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import normlens
from normlens.corpus.runs.options import Execution
from normlens.studies.papers.reproduce import reproduce

PATH = Path(normlens.__file__).with_name("_keywords.pyi")
HEADER = '''"""Options as keywords, for type checkers and editors: see tools/write_keywords.py."""

import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TypedDict

from normlens.corpus.measures import Measure
from normlens.explain.explainer import Positions, Targets, Tokens
from normlens.inputs.signals import Features
from normlens.inputs.text import Ids, Side
from normlens.lens import Direction
from normlens.pipeline.batches import Progress
'''
#: What `explain` is asked, and what is given instead of a text.
QUESTION = ("target", "contrast", "token", "position", "direction")
SIGNALS = ("truncate", "sampling_rate")
IDS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "decoder_input_ids",
    "decoder_attention_mask",
    "input_features",
)


def options_of(function: Callable[..., Any]) -> dict[str, str]:
    """The options that a function takes beside the parameters that it names."""
    code = inspect.unwrap(function).__code__
    return _keywords_of(function, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _keywords_of(function: Callable[..., Any], without: Iterable[str] = ()) -> dict[str, str]:
    """The keywords of a signature and their types."""
    shown = inspect.signature(function).parameters.values()
    return {each.name: each.annotation for each in shown if each.name not in without}


def keywords() -> dict[str, dict[str, str]]:
    """Every typed dictionary: its name, and the types of its keys."""
    maps, explain = normlens.Lens.maps, normlens.Lens.explain
    named = ("self", "text", "target")
    return {
        "AnalysisKeywords": options_of(maps),
        "TextKeywords": _keywords_of(maps, (*named, *IDS)),
        "IdKeywords": _keywords_of(maps, ("self", "text", *SIGNALS, "input_ids", "input_features")),
        "NoTextKeywords": _keywords_of(maps, ("self", "text", *SIGNALS)),
        "ExplainKeywords": options_of(explain),
        "QuestionKeywords": _keywords_of(explain, (*named, *QUESTION, *IDS)),
        "AnyQuestionKeywords": _keywords_of(explain, ("self", "text")),
        "CiteKeywords": options_of(normlens.Lens.cite),
        "CosineKeywords": options_of(normlens.Lens.cosine),
        "PairKeywords": _keywords_of(normlens.Lens.cosine, ("self", "a", "b")),
        "ScoreKeywords": options_of(normlens.Lens.score),
        "EncodeKeywords": options_of(normlens.Lens.encode),
        "EncodePairsKeywords": options_of(normlens.Lens.encode_pairs),
        "ExecutionKeywords": _keywords_of(Execution),
        "RunKeywords": options_of(normlens.run),
        "EvaluateKeywords": options_of(normlens.evaluate),
        "AlignKeywords": options_of(normlens.align),
        "AblateKeywords": options_of(normlens.ablate),
        "SettingsKeywords": options_of(reproduce),
    }


def stub() -> str:
    """The file's text."""
    classes = [
        f"class {name}(TypedDict, total=False):\n"
        + "".join(f"    {key}: {kind}\n" for key, kind in types.items())
        for name, types in keywords().items()
    ]
    return "\n".join([HEADER, *classes])


if __name__ == "__main__":
    PATH.write_text(stub(), encoding="utf-8")
