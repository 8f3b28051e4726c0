"""The table of supported model families, computed from tiny models instead of written by hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from normlens.errors import InputError, UnsupportedModelError, reason_of
from normlens.estimate import skeleton
from normlens.family_traits import traits_of
from normlens.models import supported_families
from normlens.models.refusals import refusal
from normlens.models.signals import ImageEncoder, SignalEncoder
from normlens.models.tiny import (
    tiny_config,
    tiny_encoder_decoders,
    tiny_families,
    tiny_signal_families,
)

_log = logging.getLogger(__name__)


#: What a model reads.
TEXT, IMAGES, SOUND = "text", "images", "sound"


@dataclass(frozen=True)
class Family:
    """One model type and what its layers consist of, as far as a tiny model can tell."""

    model_type: str
    causal: bool | None = None  # None: there is no tiny model to tell
    components: str = "unknown"
    scopes: tuple[str, ...] = ()
    two_stacks: bool = False
    traits: tuple[str, ...] = ()

    @property
    def reads(self) -> str:
        """What the model reads: text, or what its first trait says."""
        return next((trait for trait in self.traits if trait in (IMAGES, SOUND)), TEXT)

    def matches(self, words: Sequence[str]) -> bool:
        """Whether every word is in its name, its kind of attention, its components or traits."""
        text = " ".join((self.model_type, self.attention, self.components, *self.traits)).lower()
        return all(word.lower() in text for word in words)

    @property
    def attention(self) -> str:
        if self.causal is None:
            return "unknown"
        if self.two_stacks:
            return "encoder–decoder"
        return "causal" if self.causal else "bidirectional"


def family_table() -> list[Family]:
    """Every model type that has an adapter: encoders, decoders, encoder–decoders, then the others.

    Those are the models that see or hear; those without a tiny model come last.
    """
    tiny = {*tiny_families(), *tiny_encoder_decoders(), *tiny_signal_families()}
    families = [
        _family(model_type) if model_type in tiny else Family(model_type)
        for model_type in supported_families()
    ]
    return sorted(families, key=lambda family: (_rank(family), family.model_type))


def _rank(family: Family) -> int:
    if family.causal is None:
        return 5
    if family.reads != TEXT:
        return 3 if family.reads == IMAGES else 4
    return 2 if family.two_stacks else int(family.causal)


def _family(model_type: str) -> Family:
    try:
        lens = skeleton(tiny_config(model_type), name=model_type)
    # One package's mistake must not hide the families of all others.
    except Exception as error:
        _log.warning(
            "normlens: the tiny configuration of %r gives no model (%s); mend the settings that "
            "it was registered with",
            model_type,
            reason_of(error),
        )
        return Family(model_type)
    scopes, traits = tuple(lens.scopes), traits_of(lens.layers)
    if isinstance(lens.adapter, SignalEncoder):
        traits = (IMAGES if isinstance(lens.adapter, ImageEncoder) else SOUND, *traits)
    return Family(model_type, lens.causal, lens.component_sequence, scopes, lens.two_stacks, traits)


def search_families(words: Sequence[str]) -> list[Family]:
    """The families that match every word, or an error that says what there is."""
    found = [family for family in family_table() if family.matches(words)]
    if found:
        return found
    for word in words:
        if (reason := refusal(word)) is not None:
            raise UnsupportedModelError(reason)
    raise InputError(
        f"no model type has {', '.join(map(repr, words))} in its name, components or traits; "
        "`normlens models` lists all of them"
    )


def by_components(families: list[Family]) -> list[list[Family]]:
    """Group families whose layers have the same components and kind of attention."""

    def alike(family: Family) -> tuple[bool | None, str]:
        return family.causal, family.components

    order = {key: place for place, key in enumerate(dict.fromkeys(map(alike, families)))}
    ranked = sorted(families, key=lambda family: order[alike(family)])
    return [list(group) for _, group in groupby(ranked, alike)]


def markdown_table(words: Sequence[str] = ()) -> str:
    """A table of the families that match every word, with one row per kind of layer."""
    lines = [
        "| model types | attention | components | scopes |",
        "|---|---|---|---|",
    ]
    for group in by_components(search_families(words)):
        types = ", ".join(f"`{family.model_type}`" for family in group)
        scopes = ", ".join(group[0].scopes)
        lines.append(f"| {types} | {group[0].attention} | {group[0].components} | {scopes} |")
    return "\n".join(lines) + "\n"
