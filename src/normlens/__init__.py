"""NormLens: how every component of a Transformer layer mixes its tokens.

>>> import normlens
>>> lens = normlens.load()
>>> maps = lens.maps("She teaches soap opera history.")
>>> maps["ATTNRESLNFF-N"]        # array [layer, target, source]
"""

from normlens._version import __version__
from normlens.errors import NormLensError
from normlens.lens import Lens
from normlens.loading import load
from normlens.maps import Maps
from normlens.models import Adapter, register
from normlens.store import open

__all__ = [
    "Adapter",
    "Lens",
    "Maps",
    "NormLensError",
    "__version__",
    "load",
    "open",
    "register",
]
