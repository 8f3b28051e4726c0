"""``llms.txt``: the site's pages and what each is about, for programs that read."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_SUMMARY = """\
# NormLens

> How every component of a Transformer layer mixes its tokens: exact norm-based attribution maps,
> explanations of predictions and of cosines, for unmodified Hugging Face models, with the
> completeness error in every result. Python package and command line; Apache-2.0.

Rows of a map are outputs (targets), columns inputs (sources); layers and heads count from 0. Start:
`import normlens; maps = normlens.load("minilm").maps("She teaches soap opera history.")`.
`normlens --help` lists the commands, `normlens help` the pages that are installed.
"""


def write_text(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    lines = [_SUMMARY]
    for caption, pages in _groups(app.env).items():
        lines.append(f"## {caption}\n")
        lines += [_line(app, page) for page in pages]
        lines.append("")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _groups(env: BuildEnvironment) -> dict[str, list[str]]:
    """The pages of each part of the site, with those below them."""
    groups: dict[str, list[str]] = {}
    for tree in env.get_doctree("index").findall(lambda node: node.tagname == "toctree"):
        pages = groups.setdefault(tree["caption"] or "Pages", [])
        for page in tree["includefiles"]:
            pages += [page, *env.toctree_includes.get(page, [])]
    return groups


def _line(app: Sphinx, page: str) -> str:
    title = app.env.titles[page].astext()
    target = app.builder.get_target_uri(page)
    about = _first_sentence(app.env.get_doctree(page))
    return f"- [{title}]({target})" + (f": {about}" if about else "")


def _first_sentence(tree: nodes.document) -> str:
    for paragraph in tree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if text:
            return re.split(r"(?<!et al)\. ", text)[0].rstrip(".:") + "."
    return ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
