"""The pages around the front end: the server's, and the one that holds everything itself."""

from __future__ import annotations

import base64
import html
from functools import cache
from importlib import resources

from normlens.errors import valid_choice

MODES = ("serve",)


@cache
def script() -> str:
    """Read the front end, an ES module."""
    return _static("viewer.js")


def shell(mode: str = "serve") -> str:
    """Read the server's page, which loads ``static/viewer.js`` and no other file."""
    valid_choice(mode, MODES, "mode of the viewer's page")
    return _static("serve.html")


def standalone(payload: bytes, title: str, state: str = "") -> str:
    """Put the front end and a payload into one page that works from disk, without network.

    `state` is what it shows first, as in the page's address: ``"layer=3&scope=FF"``. Tokens and
    texts are inside the payload's base64, so none of them is ever read as markup.
    """
    # Inside a script element only these character sequences mean something to an HTML parser.
    inline = script().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    page = _static("page.html")
    for name, text in (
        ("title", html.escape(title)),
        ("state", html.escape(state)),
        ("payload", base64.b64encode(payload).decode("ascii")),
        ("script", inline),
    ):
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = f"{before}{text}{after}"
    return page


def _static(name: str) -> str:
    return (resources.files("normlens.viewer") / "static" / name).read_text(encoding="utf-8")
