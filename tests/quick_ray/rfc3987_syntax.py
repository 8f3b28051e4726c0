"""In the way of an installed package of this name, which compiles a grammar for more than a second.

Every process of Ray imports jsonschema, which imports that package where it can (JupyterLab brings
it along) and does without it where it cannot. Ray's processes of tests have this folder in their
PYTHONPATH.
"""

raise ImportError("left out, to start faster")
