"""The table of supported families, computed from tiny models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normlens.errors import InputError, UnsupportedModelError, reason_of
from normlens.layers import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Projection,
    blocks_of,
)
from normlens.models.base import supported_families, tiny_settings
from normlens.models.parts import ImageEncoder, SignalEncoder
from normlens.models.refusals import refusal
from normlens.models.tiny import tiny_config
from normlens.plan.estimate import skeleton

# What a family's layers are like, in a few words: the norms, the blocks, how far targets see.


def _traits(layers: Sequence[Layer]) -> Iterator[str]:
    steps = [step for layer in layers for step in layer.steps]
    norms = [step for step in steps if isinstance(step, Norm)]
    norms += [s.norm for s in steps if isinstance(s, ParallelFeedForward) and s.norm is not None]
    for norm in norms:
        yield "no norms" if norm.eps is None else "LayerNorm" if norm.centred else "RMSNorm"
    if any(isinstance(step, Projection) for step in steps):
        yield "bottlenecks"
    if any(sum(isinstance(step, FeedForward) for step in layer.steps) > 1 for layer in layers):
        yield "several blocks"
    attentions = [step for step in steps if isinstance(step, Attention)]
    for attention in attentions:
        if attention.groups < attention.heads:
            yield "multi-query" if attention.groups == 1 else "grouped queries"
    if any(attention.latent is not None for attention in attentions):
        yield "latent attention"
    if any(attention.sinks for attention in attentions):
        yield "attention sinks"
    if any(layer.reach.back is not None for layer in layers):
        yield "windows"
    if any(isinstance(step, ParallelFeedForward) for step in steps):
        yield "parallel"
    for step in steps:
        if isinstance(step, Experts):
            yield "experts" if step.shared is None else "experts with a shared one"
    for block in (block for step in steps for block in blocks_of(step)):
        yield f"gated {block.activation}" if block.gate is not None else block.activation
        if block.limit is not None:
            yield "limits"
    maps = [linear for layer in layers for linear in layer.linear_maps]
    yield "biases" if any(linear.bias is not None for linear in maps) else "no biases"
    if any(linear.is_scaled for linear in maps):
        yield "factors"


# The table of supported model families, computed from tiny models instead of written by hand.


_log = logging.getLogger(__name__)

#: What a model reads that reads no text.
IMAGES, SOUND = "images", "sound"
#: The order of the table, by kinds of families.
_ORDER = ("bidirectional", "causal", "encoder–decoder", IMAGES, SOUND, "unknown")


@dataclass(frozen=True)
class Family:
    """One model type and what its layers consist of, as far as a tiny model can tell."""

    model_type: str
    attention: str = "unknown"  # there is no tiny model to tell
    components: str = "unknown"
    traits: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What the model reads that is no text, or how it attends to a text."""
        return next((trait for trait in self.traits if trait in (IMAGES, SOUND)), self.attention)

    def matches(self, words: Sequence[str]) -> bool:
        """Whether every word is in its name, its kind of attention, its components or traits."""
        text = " ".join((self.model_type, self.attention, self.components, *self.traits)).lower()
        return all(word.lower() in text for word in words)


def family_table() -> list[Family]:
    """Every model type that has an adapter: encoders, decoders, encoder–decoders, then the others.

    Those are the models that see or hear; those without a tiny model come last.
    """
    families = map(_family, sorted(supported_families()))
    return sorted(families, key=lambda family: _ORDER.index(family.kind))


def _family(model_type: str) -> Family:
    if tiny_settings(model_type) is None:
        return Family(model_type)
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
    attention = "causal" if lens.causal else "bidirectional"
    traits = dict.fromkeys(_traits(lens.layers))  # each is named once
    if isinstance(lens.adapter, SignalEncoder):
        traits = {IMAGES if isinstance(lens.adapter, ImageEncoder) else SOUND: None, **traits}
    return Family(
        model_type,
        "encoder–decoder" if lens.two_stacks else attention,
        lens.component_sequence,
        tuple(traits),
        tuple(lens.scopes),
    )


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
    groups: dict[tuple[str, str], list[Family]] = {}
    for family in families:
        groups.setdefault((family.attention, family.components), []).append(family)
    return list(groups.values())


def markdown_table(words: Sequence[str] = ()) -> str:
    """A table of the families that match every word, with one row per kind of layer."""
    lines = ["| model types | attention | components | scopes |", "|---|---|---|---|"]
    for group in by_components(search_families(words)):
        types = ", ".join(f"`{family.model_type}`" for family in group)
        scopes = ", ".join(group[0].scopes)
        lines.append(f"| {types} | {group[0].attention} | {group[0].components} | {scopes} |")
    return "\n".join(lines) + "\n"
