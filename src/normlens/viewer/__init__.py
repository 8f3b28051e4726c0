"""Maps, explanations and cosines to look at: one front end in a file, a notebook and a local page.

The front end itself is `static/viewer.js`, built from the folder ``viewer`` of the repository.
"""

from normlens.viewer.compared import cosine_html
from normlens.viewer.explained import explanation_html
from normlens.viewer.html import to_html
from normlens.viewer.payload import encode

__all__ = ["cosine_html", "encode", "explanation_html", "to_html"]
