"""The page of supported models in the documentation, and the README's few lines about it."""

from __future__ import annotations

import textwrap

from normlens.families import by_components, family_table, markdown_table
from normlens.models.refusals import refused_types
from normlens.wording import listed

#: Names that most readers look for, of each kind of attention.
EXAMPLES = (
    *("bert", "roberta", "distilbert", "deberta-v2", "modernbert", "eurobert", "nomic_bert", "esm"),
    *("gpt2", "llama", "qwen3", "gemma3_text", "olmo3", "smollm3", "granite", "cohere2", "falcon"),
    *("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"),
    *("t5", "bart", "marian", "m2m_100", "whisper"),
)

#: What models are called that attend in one way or another.
NOUNS = {"bidirectional": "encoders", "causal": "decoders", "encoder–decoder": "encoder–decoders"}


def readme_lines() -> str:
    """How many model types there are, with examples of each kind of attention."""
    families = family_table()
    shown = []
    for attention in dict.fromkeys(family.attention for family in families):
        names = [family.model_type for family in families if family.attention == attention]
        some = [f"`{name}`" for name in EXAMPLES if name in names]
        shown.append(f"{len(names)} {NOUNS.get(attention, attention)} ({', '.join([*some, '…'])})")
    kinds = len(by_components(families))
    text = (
        f"{len(families)} model types with {kinds} kinds of layer: {listed(shown)}. All of "
        "them, with their traits and scopes, and what cannot be supported and why: "
        "[docs/models.md](docs/models.md), or `normlens models WORD…`."
    )
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def models_tables() -> str:
    """The generated part of the page: families with traits, kinds of layer, what is refused."""
    lines = [
        "## Families",
        "",
        "| model type | attention | components | traits |",
        "|---|---|---|---|",
    ]
    for family in family_table():
        traits = ", ".join(family.traits)
        cells = f"`{family.model_type}`", family.attention, family.components, traits
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Kinds of layer", "", *markdown_table().splitlines()]
    lines += ["", "## What cannot be supported", "", "| model types | why |", "|---|---|"]
    reasons = refused_types()
    for reason in dict.fromkeys(reasons.values()):
        types = ", ".join(f"`{name}`" for name in sorted(reasons) if reasons[name] == reason)
        lines.append(f"| {types} | {reason} |")
    return "\n".join(lines) + "\n"
