"""What the demo explains: one word and not another, and the cosine of two sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from normlens.demo.tables import TextTable, rendered
from normlens.exports.explanation_export import COMPONENTS, FLOW, TOKENS, write_explanation
from normlens.exports.printing import save_figure
from normlens.lens import Lens
from normlens.results import store
from normlens.results.contribution_rows import rows_of
from normlens.results.cosine import Cosine
from normlens.results.cosine_words import PLACES, cosine_words, parts_words
from normlens.results.explanation import Explanation
from normlens.results.explanation_words import decimals, score_words, signed_number

PROMPT = "The keys to the cabinet"
TARGET, CONTRAST = " are", " is"
PAIR = ("A man is playing a flute.", "Someone plays an instrument.")
_PAIRS = 6  # in the table of a cosine
_PICTURES = {
    TOKENS: ("why", "what each token contributes"),
    FLOW: ("why-flow", "the score's way through the layers"),
    COMPONENTS: ("why-components", "what each layer's components and heads add"),
}


def show_why(
    lens: Lens, name: str, folder: Path, echo: Callable[[str], object], *, pictures: bool
) -> list[tuple[Path, str]]:
    """Explain, print and write; return each file and a description of it."""
    why = lens.explain(PROMPT, target=TARGET, contrast=CONTRAST)
    assert isinstance(why, Explanation)
    echo(rendered(why_table(why)))
    said = f"{why.question} behind “{PROMPT}”"
    written = [(why.save(folder / f"{name}-why.safetensors", overwrite=True), said)]
    for kind, (ending, what) in _PICTURES.items() if pictures else ():
        path = folder / f"{name}-{ending}.png"
        write_explanation(why, path, overwrite=True, picture=kind)
        written.append((path, what))
    return written


def why_table(why: Explanation) -> TextTable:
    """What each token contributes, what no token owns, and their sum."""
    rows = rows_of(why.tokens, why.contributions, why.remainder)
    places = decimals(max(abs(row.value) for row in rows))
    numbers = [[row.label, signed_number(row.value, places)] for row in rows]
    return TextTable(
        f"{why.question[0].upper()}{why.question[1:]} behind “{why.text}”?",
        ["token", "contribution"],
        [*numbers, ["sum", signed_number(why.value, places)]],
        f"{score_words(why)}; completeness {why.completeness:.1e}.",
    )


def show_cosine(
    lens: Lens, name: str, folder: Path, echo: Callable[[str], object], *, pictures: bool
) -> list[tuple[Path, str]]:
    """Take a cosine apart, print and write; return each file and a description of it."""
    pair = lens.cosine(*PAIR)
    echo(rendered(cosine_table(pair)))
    said = f"the cosine of “{PAIR[0]}” and “{PAIR[1]}”"
    written = [(pair.save(folder / f"{name}-cosine.safetensors", overwrite=True), said)]
    if pictures:
        path = folder / f"{name}-cosine.png"
        with store.writing(path, overwrite=True) as temporary:
            save_figure(pair.plot(), temporary)
        written.append((path, "which of their tokens made it"))
    return written


def cosine_table(pair: Cosine) -> TextTable:
    """The pairs of tokens with the largest parts."""
    top = pair.top(_PAIRS)[["a_token", "b_token", "value"]].itertuples(index=False)
    return TextTable(
        f"Which tokens made the {cosine_words(pair)} of “{pair.text_a}” and “{pair.text_b}”?",
        ["token of A", "token of B", "part"],
        [[str(a), str(b), signed_number(value, PLACES)] for a, b, value in top],
        f"{parts_words(pair)}; completeness {pair.completeness:.1e}.",
    )
