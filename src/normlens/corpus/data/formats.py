"""The file formats: which reader a file takes, by its suffix or its first lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from normlens.corpus.data import conll
from normlens.corpus.data.lines import Lines
from normlens.corpus.data.parallel import read_parallel
from normlens.corpus.data.prose import read_text, read_wikitext
from normlens.corpus.data.read_options import Located, ReadOptions, unless
from normlens.corpus.data.source import Source
from normlens.corpus.data.stsb import looks_like_stsb, read_stsb
from normlens.corpus.data.table_files import read_csv, read_jsonl, read_parquet, read_tsv
from normlens.errors import InputError


def read_conll(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read sentences of a CoNLL column file, with their entities."""
    lines = Lines(source)
    sentences = conll.sentences(lines, repr(str(source.path)), source.number + 1)
    for index, (words, entities) in enumerate(sentences, source.start.record + 1):
        fields = unless(lines.problem(), words=words, entities=entities)
        yield f"sentence {index}", fields


READERS: dict[str, Callable[[Source, ReadOptions], Iterator[Located]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "conll": read_conll,
    "wikitext": read_wikitext,
    "stsb": read_stsb,
    "parallel": read_parallel,
}
SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys(conll.SUFFIXES, "conll"),
}
#: Formats that no suffix tells; a file is read so where the name stands before it.
EXPLICIT = ("parallel",)
_TABLES = ("jsonl", "csv", "tsv", "parquet")


def format_of(path: Path) -> str:
    """Tell a file's format by its suffix or its first lines."""
    by_suffix = SUFFIXES.get(path.suffix.lower())
    if by_suffix in ("csv", "tsv") and looks_like_stsb(Lines(Source(path))):
        return "stsb"
    if by_suffix not in ("text", None):
        return by_suffix
    try:
        if conll.looks_like_columns(Lines(Source(path))):
            return "conll"
    except InputError:
        if by_suffix:
            raise
    if by_suffix:
        return by_suffix
    raise InputError(
        f"cannot tell the format of {str(path)!r} by its suffix {path.suffix!r}; rename it to one "
        f"of: {', '.join(SUFFIXES)} (or name the data set: wikitext:{path.name})"
    )


def check_options(options: ReadOptions, path: Path, kind: str) -> None:
    """Refuse an option that this file's format would ignore."""
    if (options.column or options.pair_column) and kind not in _TABLES:
        raise InputError(
            f"{str(path)!r} has no columns to choose (it is read as {kind}); leave column and "
            "pair_column out, or give a .jsonl, .csv, .tsv or .parquet file"
        )
    if options.extra and kind not in (*_TABLES, "stsb"):
        raise InputError(
            f"{str(path)!r} has no column {options.extra[0]!r} (it is read as {kind}); give a "
            ".jsonl, .csv, .tsv or .parquet file"
        )
    if options.paragraphs and kind != "text":
        raise InputError(
            f"paragraphs are for .txt files and {str(path)!r} is read as {kind}; leave it out"
        )
