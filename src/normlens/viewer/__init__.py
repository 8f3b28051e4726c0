"""Maps to look at: one front end in a file, in a notebook and on a local page.

The front end itself is `static/viewer.js`, built from the folder ``viewer`` of the repository.
"""

from normlens.viewer.html import to_html
from normlens.viewer.payload import encode

__all__ = ["encode", "to_html"]
