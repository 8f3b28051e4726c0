"""What README.md and docs/models.md say of families: run it after adding one."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from normlens.errors import listed
from normlens.models.refusals import REASONS
from normlens.models.table import IMAGES, SOUND, by_components, family_table, markdown_table

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- families:[^\n]*-->\n).*?(<!-- /families -->)", re.S)
#: Names that most readers look for, of each kind of attention.
EXAMPLES = (
    *("bert", "roberta", "distilbert", "deberta-v2", "modernbert", "eurobert", "nomic_bert", "esm"),
    *("gpt2", "llama", "qwen3", "gemma3_text", "olmo3", "smollm3", "granite", "cohere2", "falcon"),
    *("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"),
    *("t5", "bart", "marian", "m2m_100", "whisper"),
    *("vit", "deit", "dinov2", "dinov3_vit", "clip_vision_model", "siglip_vision_model", "beit"),
    *("wav2vec2", "hubert"),
)

#: What models are called that attend in one way or another, or read no text.
NOUNS = {
    "bidirectional": "encoders",
    "causal": "decoders",
    "encoder–decoder": "encoder–decoders",
    IMAGES: "image encoders",
    SOUND: "audio encoders",
}


def readme_lines() -> str:
    """How many model types there are, with examples of each kind of attention."""
    families = family_table()
    shown = []
    kind_of = {family.model_type: family.kind for family in families}
    for kind in dict.fromkeys(kind_of.values()):
        names = [name for name, its_kind in kind_of.items() if its_kind == kind]
        some = [f"`{name}`" for name in EXAMPLES if name in names]
        shown.append(f"{len(names)} {NOUNS.get(kind, kind)} ({', '.join([*some, '…'])})")
    kinds = len(by_components(families))
    text = (
        f"{len(families)} model types with {kinds} kinds of layer: {listed(shown)}. All of "
        "them, with their traits and scopes, and what cannot be supported and why: "
        "[docs/models.md](docs/models.md), or `normlens models WORD…`."
    )
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def families() -> str:
    """A row for each supported model type."""
    lines = ["| model type | attention | components | traits |", "|---|---|---|---|"]
    for family in family_table():
        traits = ", ".join(family.traits)
        cells = f"`{family.model_type}`", family.attention, family.components, traits
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def refused() -> str:
    """A row for each reason that a model type cannot be supported."""
    lines = ["| model types | why |", "|---|---|"]
    for reason in dict.fromkeys(REASONS.values()):
        types = ", ".join(f"`{name}`" for name in sorted(REASONS) if REASONS[name] == reason)
        lines.append(f"| {types} | {reason} |")
    return "\n".join(lines) + "\n"


#: The tables of docs/models.md, which are made when the site is built.
TABLES = {"families": families, "layers": markdown_table, "refused": refused}


def rewrite(path: Path, text: str) -> None:
    """Put `text` between the two marks of a document."""
    document, count = PART.subn(lambda marks: f"{marks[1]}\n{text}\n{marks[2]}", path.read_text())
    if count != 1:
        raise SystemExit(f"{path} has {count} parts for families, not one")
    path.write_text(document)


if __name__ == "__main__":
    rewrite(ROOT / "README.md", readme_lines())
