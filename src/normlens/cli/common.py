"""What commands share: texts from arguments and pipes, tables, files, signs of life."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
        console.width = 1 << 16
    return console


def say(*lines: str, style: str = "") -> None:
    """Print lines of text."""
    for line in lines:
        console_for().print(Text(line, style=style))


def new_table(
    columns: Iterable[str], rows: Iterable[Iterable[str | Text]], left: Collection[int] = (0,)
) -> Table:
    """A plain table; `left` are the places of columns of words, and the others are numbers."""
    names = list(columns)
    table = Table(box=box.SIMPLE_HEAD, show_header=any(names))
    for place, name in enumerate(names):
        is_left = place in left or place - len(names) in left
        table.add_column(Text(name), justify="left" if is_left else "right", overflow="fold")
    for row in rows:
        # Tokens such as [CLS] would be taken for markup if they were passed as strings.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    left: Collection[int] = (0,),
) -> None:
    """Print a plain table below its title; without a title, alone."""
    if title:
        say(f"\n{title}")  # as a table's own title it would be broken at the table's width
    console_for().print(new_table(columns, rows, left))


@contextmanager
def status(message: str, quiet: bool) -> Iterator[Progress | None]:
    """A sign of life on a terminal; elsewhere stderr gets a line now and then about layers.

    Gives what to tell of each layer. Nothing is printed to stdout, and nothing at all about work
    that is done at once.
    """
    console, said = console_for(stderr=True), time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            console.print(f"{message}: layer {done} of {total}")

    if quiet:
        yield None
    elif console.is_terminal:
        with console.status(f"{message} …") as shown:
            yield lambda done, total: shown.update(f"{message}: layer {done} of {total} …")
    else:
        yield line


def load_lens(model: str | None, tokenizer: str | None, loading: LoadOptions, quiet: bool) -> Lens:
    """Load a model, with a sign of life."""
    from normlens.loading.load import load

    with status(f"loading {model or DEFAULT}", quiet):
        return load(model, tokenizer, **asdict(loading))


# What commands write: files, judged before the work is done, or JSON on standard output.


STDOUT = Path("-")


def print_json(document: dict[str, Any]) -> None:
    """Print a document in one line, as JSON that any program reads."""
    # A stream that cannot say ρ would replace it by a question mark.
    plain = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") != "utf8"
    print(json.dumps(document, ensure_ascii=plain, allow_nan=False), flush=True)


@dataclass(frozen=True)
class Output:
    """Where results go: to a file, to standard output as JSON, or there in words.

    Options:
        out FILE (--out, -o): .safetensors, .html, .csv, .json, .png, .svg or .pdf; - is JSON on
            stdout. With --lines a file for each line: maps-1.png, …
        as_json (--json): Print the result as JSON; with --lines, a line for each.
        force (--force, -f): Overwrite what is there.
        quiet (--quiet, -q): Print results alone.
    """

    out: Path | None = None
    as_json: bool = False
    force: bool = False
    quiet: bool = False

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

    def check(self, lines: bool, drawing: Iterable[str] = ()) -> None:
        """Raise now what would otherwise fail at the end; `drawing` names options of pictures."""
        from normlens.results import exports as export
        from normlens.results import store

        if self.file is not None:
            export.check_format(self.file, drawing)
            with file_errors(self.file):
                store.check_output(
                    self.file_of(1 if lines else None), overwrite=self.force or lines
                )

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
    drawn = out is not None and out.suffix.lower() in _DRAWN
    needs = [PICTURES] * drawn + [IMAGES] * (image is not None)
    check_installed(*_of_model(model or DEFAULT), *needs)


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
    needs = [*_of_model(model), *[RAY] * (execution.get("engine") == "ray")]
    check_installed(*needs, *results, extra=extra, instead="" if missing(needs) else instead)


def _of_model(name: str | None) -> Iterator[Need]:
    """What reading an embedded model's weights needs; one that is not there says so by itself."""
    if name is not None and is_embedded(name) and EMBEDDED[name].installed:
        yield Need(f"the embedded model {name!r} needs", EMBEDDED[name].extras)


# The texts that are typed, piped or in a file, or a picture.


STDIN = "-"


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


@dataclass(frozen=True)
class Inputs:
    """What is read: a text, a pair, a picture, or the lines of a file.

    Options:
        text TEXT (--text, -t): The same, as an option.
        pair TEXT: A second text, for models that read pairs.
        target_text TEXT: Encoder–decoders: the target that the decoder reads. Default: what the
            model generates.
        file FILE: Read the text from a file; - is stdin.
        lines: Each line of the file, or of stdin, is a text; the model is loaded once.
        image FILE: Instead of a text: a picture, for models that see.
    """

    text: str | None = None
    pair: str | None = None
    target_text: str | None = None
    file: str | None = None
    lines: bool = False
    image: Path | None = None

    def read(self, typed: str | None) -> Iterator[Given]:
        """The text, pair or picture that was given, or with `lines` each line of a file.

        One input is read and judged at once; lines are read as they are asked for, but for the
        first.
        """
        texts = [text for text in (typed, self.text, self.file) if text is not None]
        if not self.lines:
            return iter([Given(self._picture(texts) if self.image else self._text(texts))])
        if self.pair is not None or self.image is not None:
            raise InputError("--lines reads one text from each line; leave --pair and --image out")
        typed, name = self._source(texts)
        if typed is not None:
            raise InputError(
                "--lines reads texts from a file or a pipe; add --file FILE, or give -"
            )
        every = _read_lines(name)
        first = next(every, None)
        if first is None:
            raise InputError(f"{_called(name)} holds no text; write one in each line")
        return chain([first], every)

    def _picture(self, texts: list[str]) -> Path:
        assert self.image is not None
        if texts or self.pair is not None:
            raise InputError("give a text or an --image, not both")
        if not self.image.is_file():
            raise InputError(f"there is no file {str(self.image)!r}; --image names a picture")
        return self.image

    def _text(self, texts: list[str]) -> str | tuple[str, str]:
        typed, name = self._source(texts)
        first = check_text(_read_file(name) if typed is None else typed)
        return first if self.pair is None else (first, check_text(self.pair))

    def _source(self, texts: list[str]) -> tuple[str | None, str]:
        """The text that was typed, or None and the file to read it from; ``-`` is stdin."""
        if not texts and _is_piped():
            return None, STDIN
        if len(texts) != 1:
            raise InputError(
                'give one text, as "…" or with --text "…", with --file FILE, or through a pipe'
            )
        return (None if self.file is not None or texts == [STDIN] else texts[0]), texts[0]


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file, rather than a terminal or nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def check_text(text: str, name: str = "text") -> str:
    """Return a text, or raise an error if it is empty."""
    if not text.strip():
        raise InputError(f"the {name} is empty; give at least one word")
    return text


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
                text = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"line {number} of {_called(name)} is not UTF-8 text; convert it"
                ) from error
            if text:
                yield Given(text, number)


def _called(name: str) -> str:
    return "standard input" if name == STDIN else repr(name)
