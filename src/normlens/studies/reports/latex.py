"""Tables for LaTeX, with booktabs."""

from __future__ import annotations

import unicodedata

from normlens.studies.reports.contents import Table
from normlens.studies.reports.layout import is_numeric

LONG = 45  # rows that fit on a page
PAGE = 345.0  # points: the width of LaTeX's own article
GAP = 12.0  # points between columns
SIZES = {"": 1.0, r"\small": 0.9, r"\footnotesize": 0.8, r"\scriptsize": 0.7}

# A bracket or a star after \\ or \midrule would be read as their option.
_LETTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "#": r"\#",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "←": r"$\leftarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "‖": r"$\|$",
    "′": "$'$",
    "†": r"$\dagger$",
    "•": r"$\bullet$",
    "✓": r"$\surd$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "Δ": r"$\Delta$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
    "τ": r"$\tau$",
    "▁": r"\rule{0.5em}{0.4pt}",  # SentencePiece's mark of a word's beginning
    "\N{NO-BREAK SPACE}": "~",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
    "\N{THIN SPACE}": r"\,",
    **{
        raised: f"$^{{{plain}}}$"
        for raised, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)
    },
}


def escaped(text: str, *, prose: bool = False) -> str:
    """Escape text for LaTeX; in prose ' is an apostrophe, elsewhere a straight quote."""
    parts = []
    for before, letter in zip("\0" + text, text, strict=False):
        if letter == before and letter in "-,":  # LaTeX joins them: -- is a dash
            parts.append("{}")
        if letter.isspace() and letter not in _LETTERS:
            parts.append(" ")
        elif unicodedata.category(letter) != "Cc" and letter != "\N{SOFT HYPHEN}":
            parts.append(letter if prose and letter == "'" else _LETTERS.get(letter, letter))
    return "".join(parts)


def beyond_latin(text: str) -> bool:
    """Whether text holds letters that only LuaLaTeX and XeLaTeX can print."""
    return any(ord(letter) > 0x17F and letter not in _LETTERS for letter in text)


def latex(table: Table, name: str) -> str:
    """Write the whole table, as a float, or over several pages if it is long."""
    text = table.text()
    names = [str(column) for column in text]
    rows = [list(map(str, row)) for row in text.itertuples(index=False, name=None)]
    aligned = "".join("r" if is_numeric(table.frame[column]) else "l" for column in table.frame)
    columns = [[name, *cells] for name, *cells in zip(names, *rows, strict=True)]
    width = sum(max(map(_points, cells)) for cells in columns)
    fitting = [size for size, scale in SIZES.items() if scale * width + GAP * len(names) <= PAGE]
    long = len(rows) > LONG
    size = next(iter(fitting), None)
    shrunk = not long and size not in ("", r"\small")
    packages = ["booktabs"] + ["longtable"] * long + ["graphicx"] * shrunk
    head = [f"% \\usepackage{{{','.join(packages)}}}"]
    if beyond_latin(table.caption + "".join(names) + "".join(map("".join, rows))):
        head.append(
            "% Letters of other scripts: use LuaLaTeX or XeLaTeX with a font that has them."
        )
    title = f"\\caption{{{escaped(table.caption, prose=True)}}}", f"\\label{{tab:{name}}}"
    body = [_row(row) for row in rows]
    if long:
        lines = _long(aligned, title, _row(names), body, r"\scriptsize" if size is None else size)
    else:
        lines = _float(aligned, title, _row(names), body, None if shrunk else size)
    return "\n".join([*head, *lines, ""])


def _points(text: str) -> float:
    """Estimate how wide a text is at ten points."""
    return sum(7.3 if letter.isupper() else 5.2 for letter in text)


def _row(cells: list[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def _float(
    aligned: str, title: tuple[str, str], columns: str, body: list[str], size: str | None
) -> list[str]:
    """Set a table in a size of type; None scales it to the page's width."""
    tabular = [
        f"\\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        columns,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if size is None:
        tabular = [r"\resizebox{\textwidth}{!}{%", *tabular[:-1], r"\end{tabular}}"]
    small = [size] if size else []
    return [r"\begin{table}[htbp]", r"\centering", *small, *title, *tabular, r"\end{table}"]


def _long(
    aligned: str, title: tuple[str, str], columns: str, body: list[str], size: str
) -> list[str]:
    head = [r"\toprule", columns, r"\midrule"]
    return [
        "{" + (size or "%"),
        f"\\begin{{longtable}}{{{aligned}}}",
        title[0] + title[1] + r" \\",
        *head,
        r"\endfirsthead",
        *head,
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *body,
        r"\end{longtable}}",
    ]
