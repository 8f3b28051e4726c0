"""Numbers and facts as a reader sees them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from normlens.papers.report.content import Header, Measured, Model

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DASH = "–"


def fixed(value: float | None, digits: int) -> str:
    """Write a number with so many decimals and a true minus."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.{digits}f}".replace("-", "−")


def number(value: float | None) -> str:
    """Write a number of any size: whole, with three decimals, or as a power of ten."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}".replace("-", "−")
    if not 5e-4 <= abs(value) < 1e6:
        return power(value)
    return fixed(value, 3 if abs(value) < 100 else 1)


def signed(value: float | None, digits: int) -> str:
    """Write a difference with its sign, or ±0."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:+.{digits}f}".replace("-", "−")
    return "±" + text[1:] if not float(text[1:]) else text


def power(value: float | None) -> str:
    """Write a number in scientific notation: 3.1 × 10⁻⁷."""
    if value is None or not math.isfinite(value):
        return DASH
    if not value:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")


def count(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: 3 layers, 1 layer."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def slug(name: str) -> str:
    """Make a file name that every file system takes: small Latin letters, digits, - and _."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9_]+", "-", plain.lower()).strip("-_")[:80] or "unnamed"


def unique(name: str, taken: set[str]) -> str:
    """Add a number to `name` if it is taken, and mark the result as taken."""
    free, copy = name, 2
    while free in taken:
        free, copy = f"{name}-{copy}", copy + 1
    taken.add(free)
    return free


def model_facts(model: Model) -> list[tuple[str, str]]:
    """List label and text of each fact about the model."""
    attention = "causal" if model.causal else "bidirectional"
    facts = [
        ("Model", f"{model.name} ({model.type}, {attention}, {count(model.layers, 'layer')})"),
        ("Layer", model.components),
        ("Scopes", ", ".join(model.scopes)),
        ("Computed in", f"{model.dtype} on {model.device}"),
    ]
    if model.revision:
        facts.append(("Revision", model.revision))
    if model.weights:
        facts.append(("Weights", shortened(model.weights)))
    return facts


def facts(header: Header) -> list[tuple[str, str]]:
    """List label and text of each fact above the experiments, without the table of runs."""
    dates = sorted({run.date[:10] for run in header.runs if run.date})
    between = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    return [
        *model_facts(header.model),
        ("Layers", "counted from 1 in this report, as in the papers"),
        ("Completeness error", completeness(header)),
        ("Settings", " · ".join(_settings(header.settings))),
        ("Versions", " · ".join(f"{name} {text}" for name, text in header.versions.items())),
        ("Date of the runs", between),
    ]


def completeness(header: Header) -> str:
    if header.completeness is None:
        return "not measured: no sequence was analysed"
    return f"at most {power(header.completeness)} (parts + bias against the model's own vectors)"


def shortened(digest: str, letters: int = 12) -> str:
    """Shorten a hash to its method and its first letters."""
    method, colon, value = digest.rpartition(":")
    return f"{method}{colon}{value[:letters]}" + ("…" if len(value) > letters else "")


def _settings(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        if name in ("model", "data", "revision") or value is None or value == () or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield f"{name.replace('_', ' ')} {text}"


RUN_COLUMNS = ("data", "", "sequences", "tokens", "failures", "completeness error")


def run_row(run: Measured) -> tuple[str, ...]:
    """Write a run as a row under `RUN_COLUMNS`."""
    named = run.data if run.source in ("", run.data) else f"{run.data} ({run.source})"
    return (
        named,
        "unmasked" if run.mask is None else f"{100 * run.mask:g} % masked",
        f"{run.sequences:,}",
        f"{run.tokens:,}",
        f"{run.failures:,}",
        power(run.completeness),
    )
