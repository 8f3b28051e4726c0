"""Errors that a user can cause, with one-line messages; optional packages; JSON from outside."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

# Errors that a user can cause: one family of exceptions with one-line messages.


class NormLensError(Exception):
    """The base of every error that a user can cause; its one-line message says what to do."""


class InputError(NormLensError, ValueError):
    """The text, the token ids or an option cannot be used."""


class OptionError(InputError):
    """An option's value cannot be used; `message` says ``{option}`` where it names the option.

    Python names the option by its keyword, the command line by its flag.
    """

    def __init__(self, option: str, message: str):
        super().__init__(message.replace("{option}", option, 1))
        self.as_typed = message.replace("{option}", f"--{option.replace('_', '-')}", 1)
        self._given = option, message

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return type(self), self._given  # from one process to another


class UnknownScopeError(InputError):
    """The model's layers do not have this scope."""


class ModelLoadError(NormLensError, OSError):
    """The model or its tokenizer cannot be found, reached or read."""


class UnsupportedModelError(NormLensError, NotImplementedError):
    """No adapter knows this architecture."""


class CompletenessError(NormLensError, ArithmeticError):
    """Parts and bias do not add up to the model's hidden state."""


class MapsFileError(NormLensError, ValueError):
    """A file is not, or is no longer, a NormLens maps file."""


class OutputError(NormLensError, OSError):
    """A file cannot be written."""


class MemoryLimitError(NormLensError, MemoryError):
    """The analysis does not fit into the memory it may use."""


class MissingDependencyError(NormLensError, ImportError):
    """An optional package that this call needs is not installed."""


class NormLensWarning(UserWarning):
    """Something a user should know of a result that is right all the same."""


def require(fits: object, message: str) -> None:
    """Raise an InputError with this message unless something holds."""
    if not fits:
        raise InputError(message)


def valid_choice(value: str, choices: list[str] | tuple[str, ...], what: str) -> str:
    """Return `value` if it is one of `choices`, else raise an error that lists them."""
    if value not in choices:
        raise InputError(f"unknown {what} {value!r}; choose one of: {', '.join(choices)}")
    return value


def check_choice(value: str, choices: tuple[str, ...], option: str) -> None:
    """Raise an error that lists the choices of an option, unless `value` is one of them."""
    if value not in choices:
        listed = ", ".join(choices)
        raise OptionError(option, f"unknown {{option}} {value!r}; choose one of: {listed}")


def one_line(text: str) -> str:
    """Join the lines of a text; spaces inside a line, as in a file's name, stay as they are."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def reason_of(error: BaseException, longest: int = 240) -> str:
    """The message of any error as one line of limited length, or its class if it has none."""
    text = one_line(str(error)) or type(error).__name__
    return text if len(text) <= longest else text[: longest - 1] + "…"


def system_reason(error: BaseException) -> str:
    """The operating system's message for a file error, without its number and path."""
    return getattr(error, "strerror", None) or reason_of(error)


# Small pieces of English sentences.


def listed(items: Sequence[str], word: str = "and") -> str:
    """Join items as English does: ``a``, ``a and b``, ``a, b and c``; empty for no items."""
    return f" {word} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def counted(count: int, noun: str) -> str:
    """A number and its noun: ``1 block``, ``2 blocks``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def quoted(text: str | Sequence[str] | None) -> list[str]:
    """A text, or each text of a pair, on one line in quotation marks; empty for no text."""
    parts = [text] if isinstance(text, str) else list(text or ())
    return [f"“{' '.join(part.split())}”" for part in parts]


# Optional packages: which extra brings them, asked for before anything long begins.


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
XARRAY = Need("labelled arrays need", ("xarray",))
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
    wanted, chosen = set(modules), list[str]()
    for extra in [preferred, *EXTRAS] if preferred else EXTRAS:
        if wanted <= set(EXTRAS[extra]):
            return extra
    for extra in sorted(EXTRAS, key=lambda name: -len(wanted & set(EXTRAS[name]))):
        if wanted & set(EXTRAS[extra]):
            chosen.append(extra)
            wanted -= set(EXTRAS[extra])
    return ",".join(chosen)


# Parsing of JSON that comes from outside the package.


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, or a ValueError that says what is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


# Errors that mean too little memory, whoever raises them, as one line that says what to do.


#: What libraries say when they get no memory: CUDA and torch's allocator; the operating system;
#: C++; oneDNN, which says no more; the loader of shared libraries.
_SAID = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "bad allocation",
    "could not create a primitive",
    "could not create a memory",
    "failed to map segment from shared object",
)
#: What to do instead of an analysis that does not fit.
SMALLER = "use shorter texts, a smaller model or another device"
_OTHER_CAUSE = "not permitted"  # of the last: a library on a disk that may not run any


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed, on any device."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(said in text for said in _SAID) and _OTHER_CAUSE not in text


def process_limit() -> str:
    """The limit of this process's addresses, in words that follow an advice; "" without one."""
    try:
        import resource  # not there on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return ""
    if limit == resource.RLIM_INFINITY:
        return ""
    return f", or raise the limit of this process, which is {limit / (1 << 30):.1f} GiB (ulimit -v)"


@contextmanager
def shortage_explained(what: str, instead: str) -> Iterator[None]:
    """Turn an error that means too little memory for `what` into one that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError, ImportError) as error:
        if isinstance(error, NormLensError) or not is_out_of_memory(error):
            raise
        raise MemoryLimitError(
            f"there is not enough memory for {what}; {instead}{process_limit()}"
        ) from error
