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
    from normlens.ablation.ablate import ablate
    from normlens.alignment.align import align
    from normlens.corpus.runs.results import Run
    from normlens.corpus.runs.runs import resume, run
    from normlens.explain import rollouts
    from normlens.faithfulness.evaluate import evaluate
    from normlens.lens import Lens
    from normlens.loading.load import load
    from normlens.models.base import Adapter, register
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps
    from normlens.results.store import open

# torch and transformers take seconds to import: a name brings its module when it is first used.
_HOMES = {
    "Adapter": "normlens.models.base",
    "Cosine": "normlens.results.explanation",
    "Explanation": "normlens.results.explanation",
    "Explanations": "normlens.results.explanation",
    "Lens": "normlens.lens",
    "Maps": "normlens.results.maps",
    "ablate": "normlens.ablation.ablate",
    "align": "normlens.alignment.align",
    "evaluate": "normlens.faithfulness.evaluate",
    "load": "normlens.loading.load",
    "open": "normlens.results.store",
    "register": "normlens.models.base",
    "resume": "normlens.corpus.runs.runs",
    "run": "normlens.corpus.runs.runs",
    "Run": "normlens.corpus.runs.results",
}

#: Modules that are reached as attributes without being imported first.
_MODULES = {"rollouts": "normlens.explain.rollouts"}

__all__ = [
    "Adapter",
    "Cosine",
    "Explanation",
    "Explanations",
    "Lens",
    "Maps",
    "NormLensError",
    "Run",
    "__version__",
    "ablate",
    "align",
    "evaluate",
    "load",
    "open",
    "register",
    "resume",
    "rollouts",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'normlens' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
