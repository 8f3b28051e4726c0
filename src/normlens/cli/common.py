"""What commands share: texts from arguments and pipes, tables, files, signs of life."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlens.errors import (
    IMAGES,
    PICTURES,
    RAY,
    InputError,
    Need,
    NormLensError,
    OutputError,
    check_installed,
    missing,
    system_reason,
)
from normlens.loading.embedded import DEFAULT, EMBEDDED
from normlens.loading.hub import is_embedded
from normlens.options import LoadOptions
from normlens.pipeline.progress import Progress

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.results.exports import Result

# Tables and signs of life, on a terminal or in a pipe.


#: Seconds between two lines about progress, where there is no terminal.
LINE_EVERY = 10.0


def console_for(*, stderr: bool = False) -> Console:
    """A terminal, or a pipe whose lines are never broken."""
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=1 << 16)
    return console


@contextmanager
def status(message: str, quiet: bool) -> Iterator[None]:
    """A sign of life on a terminal; nothing anywhere else."""
    console = console_for(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{message} …"):
        yield


def load_lens(model: str | None, tokenizer: str | None, loading: LoadOptions, quiet: bool) -> Lens:
    """Load a model, with a sign of life."""
    from normlens.loading.load import load

    with status(f"loading {model or DEFAULT}", quiet):
        return load(model, tokenizer, **asdict(loading))


@contextmanager
def layers_status(message: str, quiet: bool) -> Iterator[Progress | None]:
    """What to tell of each layer: a terminal shows it, elsewhere stderr gets a line now and then.

    Nothing is printed to stdout, and nothing at all about work that is done at once.
    """
    console = console_for(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with console.status(f"{message} …") as shown:
            yield lambda done, total: shown.update(f"{message}: layer {done} of {total} …")
    else:
        yield _now_and_then(message, console)


def _now_and_then(message: str, console: Console) -> Progress:
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            console.print(f"{message}: layer {done} of {total}")

    return say


def new_table(*columns: str, left: int = 1) -> Table:
    """A plain table: the first `left` columns are words, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        justify: Any = "left" if index < left else "right"
        table.add_column(Text(column), justify=justify, overflow="fold")
    return table


def print_table(console: Console, title: str, table: Table) -> None:
    # As a table's own title it would be broken at the table's width.
    console.print(Text(f"\n{title}"))
    console.print(table)


def add_row(table: Table, *cells: str) -> None:
    # Tokens such as [CLS] would be taken for markup if they were passed as strings.
    table.add_row(*(Text(cell) for cell in cells))


# What commands write: files, judged before the work is done, or JSON on standard output.


STDOUT = Path("-")


def print_json(document: dict[str, Any]) -> None:
    """Print a document in one line, as JSON that any program reads."""
    # A stream that cannot say ρ would replace it by a question mark.
    plain = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=plain, allow_nan=False))
    sys.stdout.write("\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Output:
    """Where results go: to a file, to standard output as JSON, or there in words."""

    out: Path | None
    as_json: bool
    force: bool
    quiet: bool
    lines: bool  # a file for each of several inputs

    def __post_init__(self) -> None:
        if self.as_json and self.out not in (None, STDOUT):
            raise InputError(
                f"--json prints the result and --out {str(self.out)!r} writes it; choose one (a "
                "file that ends in .json holds the same)"
            )

    @property
    def printed(self) -> bool:
        """Whether results go to standard output as JSON."""
        return self.as_json or self.out == STDOUT

    @property
    def file(self) -> Path | None:
        """The file to write, if one is asked for."""
        return None if self.printed else self.out

    def check(self, drawing: Iterable[str] = ()) -> None:
        """Raise now what would otherwise fail at the end; `drawing` names options of pictures."""
        from normlens.results import exports as export
        from normlens.results import store

        if self.file is None:
            return
        export.check_format(self.file, drawing)
        with file_errors(self.file):
            first = self.file_of(1 if self.lines else None)
            store.check_output(first, overwrite=self.force or self.lines)

    def file_of(self, line: int | None) -> Path:
        """The file of one of several results: ``maps-3.png`` for the third line."""
        assert self.file is not None
        name = f"{self.file.stem}-{line}{self.file.suffix}"
        return self.file if line is None else self.file.with_name(name)

    def deliver(
        self,
        result: Result,
        line: int | None,
        *,
        show: Callable[[Any], None],
        written: bool = False,
        words: Callable[[Any], str] = repr,
        **drawing: Any,
    ) -> None:
        """Print or write a result; `written` says that its file is there already."""
        from normlens.results.exports import document, write

        if self.printed:
            print_json(document(result))
        elif self.file is None:
            show(result)
        else:
            path = self.file_of(line)
            if not written:
                with file_errors(path):
                    write(result, path, overwrite=self.force, **drawing)
            if not self.quiet:
                print(f"wrote {path}: {words(result)}")


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is the user's to settle, so it is one line too."""
    try:
        yield
    except NormLensError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


# What a command needs beside the core, by its options; checked before it starts.


#: Endings of the files that Matplotlib writes.
_DRAWN = (".png", ".svg", ".pdf")


def check_result_needs(model: str | None, out: Path | None, image: Path | None = None) -> None:
    """Raise now for packages that a result's model, its file or its input will need."""
    needs = list(_of_model(model or DEFAULT))
    if out is not None and out.suffix.lower() in _DRAWN:
        needs.append(PICTURES)
    if image is not None:
        needs.append(IMAGES)
    check_installed(*needs)


def check_run_needs(
    model: str | None,
    execution: Mapping[str, Any],
    *results: Need,
    extra: str | None = None,
    instead: str = "",
) -> None:
    """Raise now for packages that a run's model, its engine or its `results` will need.

    `instead` says how to do without the packages of the results.
    """
    needs = list(() if model is None else _of_model(model))
    if execution.get("engine") == "ray":
        needs.append(RAY)
    check_installed(*needs, *results, extra=extra, instead="" if missing(needs) else instead)


def _of_model(name: str) -> Iterator[Need]:
    """What reading an embedded model's weights needs; one that is not there says so by itself."""
    if is_embedded(name) and EMBEDDED[name].installed:
        yield Need(f"the embedded model {name!r} needs", EMBEDDED[name].extras)


# The texts that are typed, piped or in a file, or a picture.


STDIN = "-"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Given:
    """One input: a text, a pair or a picture, and its line in a file of several, from 1."""

    value: str | tuple[str, str] | Path
    line: int | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors about one of several inputs say which."""
        try:
            yield
        except NormLensError as error:
            if self.line is None:
                raise
            raise InputError(f"line {self.line}: {error}") from error


def read_inputs(
    texts: Sequence[str | None],
    pair: str | None,
    file: str | None,
    image: Path | None = None,
    *,
    lines: bool = False,
) -> Iterator[Given]:
    """The text, pair or picture that was given, or with `lines` each line of a file or of stdin.

    One input is read and judged at once; lines are read as they are asked for, but for the first.
    """
    if not lines:
        return iter([Given(_read_input(texts, pair, file, image))])
    if pair is not None or image is not None:
        raise InputError("--lines reads one text from each line; leave --pair and --image out")
    typed, name = _source(texts, file)
    if typed is not None:
        raise InputError("--lines reads texts from a file or a pipe; add --file FILE, or give -")
    every = _read_lines(name)
    first = next(every, None)
    if first is None:
        raise InputError(f"{_called(name)} holds no text; write one in each line")
    return chain([first], every)


def _read_input(
    texts: Sequence[str | None], pair: str | None, file: str | None, image: Path | None
) -> str | tuple[str, str] | Path:
    """The text or pair that was given, typed or in a file, or the picture."""
    if image is not None:
        if any(given is not None for given in (*texts, pair, file)):
            raise InputError("give a text or an --image, not both")
        if not image.is_file():
            raise InputError(f"there is no file {str(image)!r}; --image names a picture")
        return image
    typed, name = _source(texts, file)
    first = _read_file(name) if typed is None else typed
    check_text(first)
    if pair is None:
        return first
    check_text(pair)
    return first, pair


def _source(texts: Sequence[str | None], file: str | None) -> tuple[str | None, str]:
    """The text that was typed, or None and the file to read it from; ``-`` is stdin."""
    given = [text for text in (*texts, file) if text is not None]
    if not given and _is_piped():
        return None, STDIN
    if len(given) != 1:
        raise InputError(
            'give one text, as "…" or with --text "…", with --file FILE, or through a pipe'
        )
    if file is not None or given == [STDIN]:
        return None, given[0]
    return given[0], ""


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file, rather than a terminal or nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def check_text(text: str, name: str = "text") -> None:
    """Raise for a text that is empty."""
    if not text.strip():
        raise InputError(f"the {name} is empty; give at least one word")


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """A file, or stdin; what cannot be read is one line."""
    try:
        if name == STDIN:
            yield sys.stdin.buffer
            return
        with Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        raise InputError(f"cannot read {_called(name)}: {system_reason(error)}") from error


def _read_file(name: str) -> str:
    """The text of a file, or of stdin, without the space around it."""
    try:
        with _opened(name) as stream:
            return stream.read().decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{_called(name)} is not UTF-8 text (byte {error.start}); convert it"
        ) from error


def _read_lines(name: str) -> Iterator[Given]:
    """Each line of a file, or of stdin, that is not blank."""
    with _opened(name) as stream:
        for number, data in enumerate(stream, start=1):
            try:
                text = data.removeprefix(_BOM if number == 1 else b"").decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"line {number} of {_called(name)} is not UTF-8 text; convert it"
                ) from error
            if text:
                yield Given(text, number)


def _called(name: str) -> str:
    return "standard input" if name == STDIN else repr(name)
