"""A page for each kind of error: those that the package itself holds for ``normlens help``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from sphinx.application import Sphinx


def write_pages(app: Sphinx) -> None:
    """Copy the package's pages into the folder ``errors``, which git ignores."""
    folder = Path(app.srcdir) / "errors"
    folder.mkdir(exist_ok=True)
    texts = {
        page.name: page.read_text(encoding="utf-8")
        for page in (resources.files("normlens") / "help" / "errors").iterdir()
    }
    for path in folder.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
