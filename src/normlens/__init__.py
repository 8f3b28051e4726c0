"""NormLens: how every component of a Transformer layer mixes its tokens.

>>> import normlens
>>> lens = normlens.load()
>>> maps = lens.maps("She teaches soap opera history.")
>>> maps["ATTNRESLNFF-N"]        # array [layer, target, source]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normlens._version import __version__
from normlens.errors import NormLensError

if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run
    from normlens.corpus.runs.runs import resume, run
    from normlens.explain import rollouts
    from normlens.lens import Lens
    from normlens.loading.load import load
    from normlens.models.base import Adapter, register
    from normlens.options import register_rule
    from normlens.results.citation import Citation
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps
    from normlens.results.search import Ranking, Score
    from normlens.results.store import open
    from normlens.scopes import register_scope
    from normlens.studies.ablation.ablate import ablate
    from normlens.studies.alignment.align import align
    from normlens.studies.faithfulness.evaluate import evaluate

# torch and transformers take seconds to import: a name brings its module when it is first used.
_HOMES = {
    "normlens.studies.ablation.ablate": ("ablate",),
    "normlens.studies.alignment.align": ("align",),
    "normlens.corpus.runs.results": ("Run",),
    "normlens.corpus.runs.runs": ("resume", "run"),
    "normlens.studies.faithfulness.evaluate": ("evaluate",),
    "normlens.lens": ("Lens",),
    "normlens.loading.load": ("load",),
    "normlens.models.base": ("Adapter", "register"),
    "normlens.options": ("register_rule",),
    "normlens.results.citation": ("Citation",),
    "normlens.results.explanation": ("Cosine", "Explanation", "Explanations"),
    "normlens.results.maps": ("Maps",),
    "normlens.results.search": ("Ranking", "Score"),
    "normlens.results.store": ("open",),
    "normlens.scopes": ("register_scope",),
}

__all__ = [
    "Adapter",
    "Citation",
    "Cosine",
    "Explanation",
    "Explanations",
    "Lens",
    "Maps",
    "NormLensError",
    "Ranking",
    "Run",
    "Score",
    "__version__",
    "ablate",
    "align",
    "evaluate",
    "load",
    "open",
    "register",
    "register_rule",
    "register_scope",
    "resume",
    "rollouts",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "rollouts":
        return import_module("normlens.explain.rollouts")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'normlens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
