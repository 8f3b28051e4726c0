"""The facts above a report's experiments: model, runs, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from normlens.papers.report.content import Header, Measured, Model
from normlens.papers.report.formatting import count, power, shortened

RUN_COLUMNS = ("data", "", "sequences", "tokens", "failures", "completeness error")


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


def _settings(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        if name in ("model", "data", "revision") or value is None or value == () or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield f"{name.replace('_', ' ')} {text}"


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
