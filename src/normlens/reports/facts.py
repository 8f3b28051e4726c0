"""The facts above a report's experiments: model, runs, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normlens.reports.content import Header, Measured, Model
from normlens.reports.formatting import count, power, shortened

_COLUMNS = ("data", "", "sequences", "tokens", "failures", "completeness error")
_NUMERIC = (False, False, True, True, True, True)
#: Places of the columns that only runs of decomposed models have: masks, and the completeness error
_DECOMPOSED = (1, 5)


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
        *header.notes,
        *([("Completeness error", completeness(header))] if header.decomposed else []),
        ("Settings", " · ".join(_settings(header.settings))),
        ("Versions", " · ".join(f"{name} {text}" for name, text in header.versions.items())),
        ("Date of the runs", between),
    ]


def completeness(header: Header) -> str:
    if header.completeness is None:
        return "not measured: no sequence was analysed"
    return f"at most {power(header.completeness)} (parts + bias against the model's own vectors)"


def _settings(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        if name in ("model", "data", "revision") or value is None or value == () or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield f"{name.replace('_', ' ')} {text}"


@dataclass(frozen=True)
class RunTable:
    """The table of runs above a report's experiments, as text."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: tuple[bool, ...]


def run_table(header: Header) -> RunTable:
    """Write every run as a row."""
    shown = [
        place for place in range(len(_COLUMNS)) if header.decomposed or place not in _DECOMPOSED
    ]
    return RunTable(
        tuple(_COLUMNS[place] for place in shown),
        [tuple(_run_row(run)[place] for place in shown) for run in header.runs],
        tuple(_NUMERIC[place] for place in shown),
    )


def _run_row(run: Measured) -> tuple[str, ...]:
    named = run.data if run.source in ("", run.data) else f"{run.data} ({run.source})"
    return (
        named,
        "unmasked" if run.mask is None else f"{100 * run.mask:g} % masked",
        f"{run.sequences:,}",
        f"{run.tokens:,}",
        f"{run.failures:,}",
        power(run.completeness),
    )
