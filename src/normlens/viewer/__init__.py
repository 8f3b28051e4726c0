"""Maps, explanations and cosines to look at: one front end in a file, a notebook and a local page.

The front end itself is `static/viewer.js`, built from the folder ``viewer`` of the repository.
"""

from normlens.viewer.notebook import to_html
from normlens.viewer.payload import encode

__all__ = ["encode", "to_html"]
