"""What the demo explains: why a decoder continues with one word and not another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from normlens.contribution_rows import rows_of
from normlens.demo_tables import TextTable, rendered
from normlens.explanation import Explanation
from normlens.explanation_export import COMPONENTS, FLOW, TOKENS, write_explanation
from normlens.explanation_words import decimals, score_words, signed_number
from normlens.lens import Lens

PROMPT = "The keys to the cabinet"
TARGET, CONTRAST = " are", " is"
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
