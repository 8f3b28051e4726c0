"""What commands share: tables, progress, texts that are typed or piped, and where results go."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlens import errors
from normlens.loading.embedded import DEFAULT, EMBEDDED
from normlens.loading.hub import is_embedded
from normlens.options import LoadOptions
from normlens.results.words import PLACES, signed_number
from normlens.studies.reports.words import NO_PAGE

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pipeline.batches import Progress
    from normlens.results.exports import Result

# Tables and progress, on a terminal or in a pipe.


#: Seconds between two lines about progress, where there is no terminal.
LINE_EVERY = 10.0


def console_for(*, stderr: bool = False) -> Console:
    """A terminal, or a pipe whose lines are never broken; [CLS] is a token, not markup."""
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = 1 << 16
    return console


def say(*lines: str, style: str = "") -> None:
    """Print lines of text."""
    console_for().print(*lines, sep="\n", style=style)


def print_table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    left: Collection[int] = (0,),
    places: int = PLACES,
) -> None:
    """Print a plain table, below its title if it has one.

    `left` are the places of columns of words, and the others are numbers; those that are not whole
    have a sign and so many decimal `places`.
    """
    names = list(columns)
    table = Table(box=box.SIMPLE_HEAD, show_header=any(names))
    for place, name in enumerate(names):
        is_left = place in left or place - len(names) in left
        table.add_column(name, justify="left" if is_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*[_cell(cell, places) for cell in row])
    if title:
        say(f"\n{title}")  # as a table's own title it would be broken at the table's width
    console_for().print(table)


def _cell(cell: object, places: int) -> str | Text:
    if isinstance(cell, Text):
        return cell
    if isinstance(cell, Real) and not isinstance(cell, Integral):
        return signed_number(float(cell), places)
    return str(cell)


@contextmanager
def status(message: str) -> Iterator[Progress]:
    """Show on a terminal that work goes on; elsewhere stderr gets a line now and then.

    Gives the function to call after each layer. Nothing is printed to stdout, and nothing at all
    about work that is done at once.
    """
    console, said = console_for(stderr=True), time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            console.print(f"{message}: layer {done} of {total}")

    if console.is_terminal:
        with console.status(f"{message} …") as shown:
            yield lambda done, total: shown.update(f"{message}: layer {done} of {total} …")
    else:
        yield line


def load_lens(model: str | None, loading: LoadOptions) -> Lens:
    """Load a model, and show that it goes on."""
    from normlens.loading.load import load

    with status(f"loading {model or DEFAULT}"):
        return load(model, **asdict(loading))


# What a command needs beside the core, by its options; checked before it starts.


def check_needs(
    model: str | None,
    *needs: errors.Need,
    execution: Mapping[str, Any] | None = None,
    extra: str | None = None,
    page: bool = False,
) -> None:
    """Raise now for packages that a model, its execution or a result will need.

    A `page` is what a study can do without.
    """
    if execution is not None and execution.get("engine") == "ray":
        needs = (errors.RAY, *needs)
    if model is not None and is_embedded(model) and EMBEDDED[model].installed:
        # An embedded model that is not there says so by itself.
        needs = (errors.Need(f"the embedded model {model!r} needs", EMBEDDED[model].extras), *needs)
    instead = NO_PAGE if page and not errors.missing(needs) else ""
    errors.check_installed(*needs, *[errors.REPORT] * page, extra=extra, instead=instead)


def check_stacks(lens: Lens, of_two: dict[str, Any], of_one: dict[str, Any]) -> None:
    """Raise for options of encoder–decoders where there is one stack, and the other way round."""
    wrong = of_one if lens.two_stacks else of_two
    for name in (name for name, value in wrong.items() if value is not None):
        if lens.two_stacks:
            raise errors.InputError(
                f"--{name} is for models of one stack; {lens.name} is an encoder–decoder: give the "
                "decoder's text as --target-text, of which explain takes a --position"
            )
        raise errors.InputError(f"--{name} is for encoder–decoders; {lens.name} reads one text")


# Where results go: files, judged before the work is done, or standard output.


STDOUT = Path("-")
#: Endings of the files that Matplotlib writes.
_DRAWN = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Output:
    """Where results go: to a file, to standard output as JSON, or there in words.

    Options:
        out FILE (--out, -o): .safetensors, .html, .csv, .json, .png, .svg or .pdf; - is JSON on
            stdout. With --lines a file for each line: maps-1.png, …
        as_json (--json): Print the result as JSON; with --lines, a line for each.
        force (--force, -f): Overwrite what is there.
    """

    out: Path | None = None
    as_json: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.as_json and self.out not in (None, STDOUT):
            raise errors.InputError(
                f"--json prints the result and --out {str(self.out)!r} writes it; choose one (a "
                "file that ends in .json holds the same)"
            )

    @property
    def printed(self) -> bool:
        """Whether results go to standard output as JSON."""
        return self.as_json or self.out == STDOUT

    def file(self, line: int | None = None) -> Path | None:
        """The file of the result, if one is asked for: ``maps-3.png`` for the third line."""
        if self.out is None or self.printed:
            return None
        name = f"{self.out.stem}-{line}{self.out.suffix}"
        return self.out if line is None else self.out.with_name(name)

    def check(
        self, model: str | None, inputs: Inputs, drawing: Collection[str] = (), like: str = ""
    ) -> None:
        """Raise now what would otherwise fail at the end: missing packages, files, formats.

        `drawing` names the options of pictures that were typed, and `like` a file for them.
        """
        drawn = self.out is not None and self.out.suffix.lower() in _DRAWN
        needs = [errors.PICTURES] * drawn + [errors.IMAGES] * (inputs.image is not None)
        check_needs(model or DEFAULT, *needs)
        file = self.file(1 if inputs.lines else None)
        if file is not None:
            from normlens.results.exports import check_format
            from normlens.results.store import check_output

            check_format(str(self.out), drawing)
            check_output(file, overwrite=self.force or inputs.lines)
        elif drawing:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in drawing)
            raise errors.InputError(f"only pictures follow {flags}; add --out {like}")

    def compute(self, message: str, given: Given, call: Callable[..., Any], **options: Any) -> Any:
        """Call with one input, and show that it goes on; errors say which line it was."""
        line, value = given
        try:
            with status(message) as progress:
                return call(value, progress=progress, **options)
        except errors.NormLensError as error:
            if line is None:
                raise
            raise errors.InputError(f"line {line}: {error}") from error

    def deliver(
        self,
        result: Result,
        line: int | None,
        show: Callable[[Any], None],
        *,
        words: str = "",
        written: bool = False,
        **drawing: Any,
    ) -> None:
        """Print or write a result; `written` says that its file is there already."""
        from normlens.results.exports import document, write

        if self.printed:
            # A stream that cannot say ρ would replace it by a question mark.
            plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
            print(json.dumps(document(result), ensure_ascii=plain, allow_nan=False), flush=True)
        elif (path := self.file(line)) is None:
            show(result)
        else:
            if not written:
                write(result, path, overwrite=self.force, **drawing)
            print(f"wrote {path}: {words or repr(result)}")


# The texts that are typed, piped or in a file, or a picture.


STDIN = "-"
#: A text, a pair or a picture, and its line in a file of several, from 1.
Given = tuple[int | None, Any]


@dataclass(frozen=True)
class Inputs:
    """What is read: a text, a pair, a picture, or the lines of a file.

    Options:
        pair TEXT: A second text, for models that read pairs.
        target_text TEXT: Encoder–decoders: the target that the decoder reads. Default: what the
            model generates.
        file FILE: Read the text from a file; - is stdin.
        lines: Each line of the file, or of stdin, is a text; the model is loaded once.
        image FILE: Instead of a text: a picture, for models that see.
    """

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
        texts = [text for text in (typed, self.file) if text is not None]
        alone = self.pair is None and self.image is None
        errors.require(
            alone or not self.lines,
            "--lines reads one text from each line; leave --pair and --image out",
        )
        if self.image is not None:
            errors.require(not texts and self.pair is None, "give a text or an --image, not both")
            found = self.image.is_file()
            errors.require(found, f"there is no file {str(self.image)!r}; --image names a picture")
            return iter([(None, self.image)])
        if not texts and is_piped():
            texts = [STDIN]
        errors.require(
            len(texts) < 2,
            "two texts were given; give one, as an argument or with --file",
        )
        errors.require(
            texts,
            'give one text, as "…", with --file FILE, or through a pipe',
        )
        text, in_file = texts[0], self.file is not None or texts[0] == STDIN
        if self.lines:
            errors.require(
                in_file, "--lines reads texts from a file or a pipe; add --file FILE, or give -"
            )
            every = _read(text, lines=True)
            first = next(every, None)
            if first is None:
                raise errors.InputError(f"{_called(text)} holds no text; write one in each line")
            return chain([first], every)
        if in_file:
            ((_, text),) = _read(text, lines=False)
        both = (text,) if self.pair is None else (text, self.pair)
        errors.require(all(map(str.strip, both)), "the text is empty; give at least one word")
        return iter([(None, text if self.pair is None else both)])


def is_piped() -> bool:
    """Whether stdin is a pipe or a file, rather than a terminal or nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read(name: str, lines: bool) -> Iterator[Given]:
    """Each line of a file, or of stdin, that is not blank; or all of it, as one text."""
    number = 1
    try:
        with nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as stream:
            for number, data in enumerate(stream if lines else [stream.read()], start=1):
                text = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text or not lines:
                    yield number, text
    except OSError as error:
        raise errors.InputError(
            f"cannot read {_called(name)}: {errors.system_reason(error)}"
        ) from error
    except UnicodeDecodeError as error:
        which = f"line {number} of {_called(name)} is" if lines else f"{_called(name)} is"
        where = "" if lines else f" (byte {error.start})"
        raise errors.InputError(f"{which} not UTF-8 text{where}; convert it") from error


def read_text(name: str) -> str:
    """A file, or stdin, as one text."""
    ((_, text),) = _read(name, lines=False)
    return str(text)


def _called(name: str) -> str:
    return "standard input" if name == STDIN else repr(name)
