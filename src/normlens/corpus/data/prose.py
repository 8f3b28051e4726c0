"""Readers of running text: lines, paragraphs, and pairs of WikiText's paragraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from normlens.corpus.data.lines import Lines
from normlens.corpus.data.read_options import Located, ReadOptions, unless
from normlens.corpus.data.source import Source


def read_text(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read a sequence per line, or per paragraph between blank lines."""
    paragraph: list[str] = []
    begin = 0
    lines = Lines(source)
    for line in lines:
        text = line.strip()
        if text and not paragraph:
            begin = source.number
        if text:
            paragraph.append(text)
        if paragraph and not (text and options.paragraphs):
            yield f"line {begin}", unless(lines.problem(), text=" ".join(paragraph))
            paragraph = []
    if paragraph:
        yield f"line {begin}", unless(lines.problem(), text=" ".join(paragraph))


def read_wikitext(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read pairs of consecutive paragraphs of an article, and what stands between the two."""
    lines = Lines(source)
    problems: dict[str, str] = {}  # paragraph → what is wrong with it

    def watched() -> Iterator[str]:
        for line in lines:
            if problem := lines.problem():
                problems[line.strip()] = problem
            yield line

    for index, (first, between, second) in enumerate(
        paragraph_pairs(watched()), source.start.record + 1
    ):
        read = (first, *between.split("\n"), second)
        problem = next((problems[text] for text in read if text in problems), None)
        problems.clear()
        yield f"pair {index}", unless(problem, text=(first, second), between=between)


def paragraph_pairs(paragraphs: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Pair the first and second, third and fourth, … paragraph of each article.

    Clark et al. 2019, section 2: two consecutive paragraphs of Wikipedia as BERT's two segments.
    Each pair comes as (first, between, second): a line break stands between the two, with the
    headings of sections that begin there, and the three in a row are one passage of the article.
    """
    first: str | None = None
    headings: list[str] = []  # behind the first paragraph
    for line in paragraphs:
        text = line.strip()
        if not text:
            continue
        if text.startswith("= ") and text.endswith(" ="):
            headings.append(text)
            if not text.startswith("= = "):  # an article's title, not a section's
                first = None
        elif first is None:
            first = text
            headings.clear()
        else:
            yield first, "\n".join(["", *headings, ""]), text
            first = None
