"""The directive ``viewer``: a live viewer in a page.

A cell writes the file with ``to_html``; the directive shows it in a frame and opens it in a state::

    ```{viewer} soap.html
    :state: layer=3&scope=FF
    :height: 640
    ```

``:small:`` shows it at two thirds of its size.
"""

from __future__ import annotations

import html
import shutil
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from notebook_files import files_of
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

_FOLDER = "viewers"


class ViewerFrame(SphinxDirective):
    """A frame with a page that a notebook wrote."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "state": directives.unchanged,
        "height": directives.positive_int,
        "title": directives.unchanged,
        "small": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        viewers_of(self.env).setdefault(self.env.docname, set()).add(name)
        top = "../" * self.env.docname.count("/")
        state = self.options.get("state")
        address = html.escape(f"{top}{_FOLDER}/{name}" + (f"#{state}" if state else ""))
        title = html.escape(self.options.get("title", "The viewer"))
        small = " small" if "small" in self.options else ""
        frame = (
            f'<div class="viewer-frame{small}"><iframe title="{title}" src="{address}" '
            f'height="{self.options.get("height", 720)}" loading="lazy"></iframe>'
            f'<p><a href="{address}">{title}, on a page of its own</a></p></div>'
        )
        return [nodes.raw("", frame, format="html")]


def viewers_of(env: BuildEnvironment) -> dict[str, set[str]]:
    """The viewers that each page shows."""
    if not hasattr(env, "normlens_viewers"):
        env.normlens_viewers = {}
    return env.normlens_viewers


def forget_page(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    viewers_of(env).pop(page, None)


def copy_viewers(app: Sphinx, error: Exception | None) -> None:
    """Put the viewers that pages show beside the pages."""
    if error is not None or app.builder.format != "html":
        return
    files = files_of(Path(app.config.nb_execution_cache_path))
    for name in sorted(set().union(*viewers_of(app.env).values())):
        if not (files / name).is_file():
            raise ExtensionError(
                f"a page shows {name}, which no notebook wrote into {files}; remove "
                f"{files.parent} and build again"
            )
        target = Path(app.outdir) / _FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files / name, target)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("viewer", ViewerFrame)
    app.connect("env-purge-doc", forget_page)
    app.connect("build-finished", copy_viewers)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
