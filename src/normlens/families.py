"""The table of supported model families, read off tiny models instead of written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from normlens.estimate import skeleton
from normlens.models import supported_families
from normlens.models.examples import EXAMPLES, tiny_config


@dataclass(frozen=True)
class Family:
    """One model type and what its layers consist of."""

    model_type: str
    causal: bool
    components: str
    scopes: tuple[str, ...]

    @property
    def attention(self) -> str:
        return "causal" if self.causal else "bidirectional"


def family_table() -> list[Family]:
    """Every model type that has an adapter and an example, in the order of the examples."""
    known = supported_families()
    return [_family(model_type) for model_type in EXAMPLES if model_type in known]


def _family(model_type: str) -> Family:
    lens = skeleton(tiny_config(model_type), name=model_type)
    return Family(model_type, lens.causal, lens.component_sequence, tuple(lens.scopes))


def by_components(families: list[Family]) -> list[list[Family]]:
    """Families whose layers are alike, together."""

    def alike(family: Family) -> tuple[bool, str]:
        return family.causal, family.components

    order = {key: place for place, key in enumerate(dict.fromkeys(map(alike, families)))}
    ranked = sorted(families, key=lambda family: order[alike(family)])
    return [list(group) for _, group in groupby(ranked, alike)]


def markdown_table() -> str:
    """The table in the README: one row per kind of layer."""
    lines = [
        "| model types | attention | components | scopes |",
        "|---|---|---|---|",
    ]
    for group in by_components(family_table()):
        types = ", ".join(f"`{family.model_type}`" for family in group)
        scopes = ", ".join(group[0].scopes)
        lines.append(f"| {types} | {group[0].attention} | {group[0].components} | {scopes} |")
    return "\n".join(lines) + "\n"
