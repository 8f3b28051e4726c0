"""How Sphinx builds the site: `make docs`.

Every page with code cells is a notebook in Markdown (MyST-NB). It is executed when the site is
built, offline; a cell that fails, a link that leads nowhere or a script from elsewhere fails the
build. Executed notebooks are kept until the notebook, the package or an installed version changes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent / "src")]

from notebook_files import prepare_kernels  # noqa: E402

from normlens import __version__  # noqa: E402

project = "NormLens"
author = "The NormLens developers"
copyright = "The NormLens developers, Apache-2.0"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "viewer_frames",
    "command_reference",
    "option_fields",
    "error_pages",
    "family_tables",
    "llms_text",
    "repository_links",
    "self_contained",
]
exclude_patterns = ["_build", "_extensions", "_static", "images/**/*.md"]

# Executing notebooks -----------------------------------------------------------------------------

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
KEPT = prepare_kernels(DOCS, DOCS / "_build" / "executed")
nb_execution_mode = "cache"
nb_execution_cache_path = str(KEPT / "cache")
nb_execution_timeout = 600  # of one cell; a quiet machine needs seconds
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # widgets of a static page would come from the network

# Markdown and docstrings -------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False  # "--out" is no dash
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says it, and unions of inputs fill a screen
maximum_signature_line_length = 76
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
suppress_warnings = ["myst.header"]  # a page that includes another one

# The pages ---------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "NormLens"
html_static_path = ["_static"]
html_css_files = ["normlens.css"]
html_copy_source = False
html_show_sphinx = False
