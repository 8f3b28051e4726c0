"""The directive ``family-table``: what the package itself says of the model types it knows."""

from __future__ import annotations

import runpy
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_TABLES = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "write_family_pages.py"))


class FamilyTable(SphinxDirective):
    """One of the tables: ``families``, ``layers`` or ``refused``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(_TABLES["TABLES"][self.arguments[0]]())


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("family-table", FamilyTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
