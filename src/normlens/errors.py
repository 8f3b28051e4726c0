"""Errors that a user can cause: one family of exceptions with one-line messages."""

from __future__ import annotations


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
