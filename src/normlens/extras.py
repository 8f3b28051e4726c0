"""Optional packages: which extra brings them, asked for before anything long begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from normlens.errors import MissingDependencyError
from normlens.wording import listed

_CORPUS = ("duckdb", "fsspec")
_REPRODUCE = (*_CORPUS, "matplotlib", "PIL", "jinja2")
#: The modules that each extra of pyproject.toml brings, the smallest extras first. Matplotlib
#: brings Pillow along.
EXTRAS: dict[str, tuple[str, ...]] = {
    "viz": ("matplotlib", "PIL"),
    "widget": ("anywidget",),
    "xarray": ("xarray",),
    "serve": ("fastapi", "uvicorn"),
    "gguf": ("gguf", "accelerate"),
    "data": ("datasets",),
    "corpus": _CORPUS,
    "ray": (*_CORPUS, "ray"),
    "reproduce": _REPRODUCE,
    "evaluate": (*_REPRODUCE, "captum"),
}
#: What people call modules whose name says little.
_CALLED = {"PIL": "Pillow", "duckdb": "DuckDB", "ray": "Ray", "fastapi": "FastAPI"}


@dataclass(frozen=True)
class Need:
    """What something cannot do without: modules, and the words that say what needs them."""

    what: str  # the subject of a sentence: "pictures need"
    modules: tuple[str, ...]


PICTURES = Need("pictures need", ("matplotlib",))
IMAGES = Need("images need", ("PIL",))
TABLES = Need("reading a run's tables needs", ("duckdb",))
REPORT = Need("the report needs", ("duckdb", "matplotlib", "jinja2"))
PAGE_SERVER = Need("the page needs", ("fastapi", "uvicorn"))
GRADIENTS = Need("integrated-gradients needs", ("captum",))
RAY = Need("--engine ray needs", ("ray",))


def missing(needs: Iterable[Need]) -> list[str]:
    """The modules of these needs that are not installed."""
    modules = dict.fromkeys(module for need in needs for module in need.modules)
    return [module for module in modules if find_spec(module) is None]


def check_installed(*needs: Need, extra: str | None = None, instead: str = "") -> None:
    """Raise one error for all that is missing, with the one extra that brings it.

    `extra` is preferred where it brings all of it; `instead` says what can be done without.
    """
    lacking = [need for need in needs if missing([need])]
    if not lacking:
        return
    modules = missing(lacking)
    names = listed([_CALLED.get(module, module) for module in modules])
    raise MissingDependencyError(
        f"{lacking[0].what if len(lacking) == 1 else 'this needs'} {names}; run: "
        f"pip install 'normlens[{extra_for(modules, extra)}]'{instead}"
    )


def extra_for(modules: Iterable[str], preferred: str | None = None) -> str:
    """The extra that brings all of these modules, or the extras that do together."""
    wanted = set(modules)
    if preferred is not None and wanted <= set(EXTRAS[preferred]):
        return preferred
    for extra, brought in EXTRAS.items():
        if wanted <= set(brought):
            return extra
    chosen = []
    while wanted:
        extra = max(EXTRAS, key=lambda name: len(wanted & set(EXTRAS[name])))
        if not wanted & set(EXTRAS[extra]):
            raise KeyError(f"no extra brings {sorted(wanted)}")
        chosen.append(extra)
        wanted -= set(EXTRAS[extra])
    return ",".join(chosen)
