"""A report as one HTML page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from normlens.errors import MissingDependencyError
from normlens.reports.content import Report
from normlens.reports.facts import facts, run_table
from normlens.reports.formatting import count
from normlens.reports.layout import FOLD, JOINED, PlacedSection
from normlens.reports.pictures import inline


def page(report: Report, sections: Sequence[PlacedSection], pictures: Mapping[str, bytes]) -> str:
    """Write the whole report; `pictures` are the figures' SVG files by their names."""
    return rendered(
        "report.html.j2",
        title=report.title,
        header=report.header,
        facts=[(label, text) for label, text in facts(report.header) if text],
        runs=run_table(report.header),
        sections=sections,
        joined=JOINED,
        fold=FOLD,
        pictures=pictures,
        further_style=report.style,
    )


def rendered(
    template: str, pictures: Mapping[str, bytes], further_style: str = "", **values: Any
) -> str:
    """Fill a template, with everything escaped but the style sheet and the pictures."""
    from markupsafe import Markup

    def picture(name: str, caption: str) -> Markup:
        return Markup(inline(pictures[name], f"{name}--", caption))

    style = Markup(_read("style.css") + further_style)
    text = _environment().get_template(template).render(picture=picture, style=style, **values)
    return text.rstrip() + "\n"


def _read(name: str) -> str:
    return (files("normlens.reports") / name).read_text("utf-8")


@cache
def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "reports need jinja2; run: pip install 'normlens[reproduce]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count
    return environment
