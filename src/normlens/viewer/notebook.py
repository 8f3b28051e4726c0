"""A payload in a notebook: an anywidget where it is installed, else the HTML page in a frame."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from normlens.errors import MissingDependencyError, NormLensError
from normlens.viewer import page
from normlens.viewer.html import LARGEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
_HINT = "pip install 'normlens[widget]'"
_FRAME = 8.0  # MB; larger frames make notebooks slow to save and to open


@dataclass(frozen=True)
class Notebook:
    """What a notebook shows, and in which state of the viewer."""

    payload: Callable[[float | None], bytes]  # in a page of at most so many MB
    title: str
    to_file: str  # the call that writes the same to a file
    state: Mapping[str, str] = field(default_factory=dict)
    figure: Callable[[], Figure] | None = None  # a still picture of the same

    def widget(self) -> Any:
        """An interactive widget; what the reader does is in its ``state``."""
        make = widget_class()
        shown = make(payload=self.payload(LARGEST), state=dict(self.state))
        shown.still = self.still()
        return shown

    def still(self) -> dict[str, str]:
        """The picture for pages that run no widget, such as GitHub's; {} without Matplotlib."""
        if self.figure is None:
            return {}
        try:
            figure = self.figure()
        except NormLensError:  # a picture that cannot be made must not keep the viewer away
            return {}
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DPI)
        return {"image/png": base64.b64encode(buffer.getvalue()).decode("ascii")}

    def frame(self, height: int = 760) -> str:
        """The self-contained page in a frame, for notebooks without anywidget."""
        document = page.standalone(self.payload(_FRAME), self.title, urlencode(self.state))
        return (
            f'<iframe title="NormLens" sandbox="allow-scripts allow-downloads" width="100%" '
            f'height="{height}" style="border:0" srcdoc="{html.escape(document)}"></iframe>'
        )

    def show(self) -> Any:
        """The widget, or a frame with a line that says how to get the widget."""
        try:
            return self.widget()
        except MissingDependencyError as error:
            return Frame(self.frame(), str(error), self.to_file, self.still())

    def mimebundle(self, text: str, **options: Any) -> Any:
        """What a notebook shows for the last expression of a cell; `text` is its plain form."""
        try:
            shown = self.widget()
        except MissingDependencyError as error:
            note = f"<p>{html.escape(str(error))}; shown in a frame instead.</p>"
            return {"text/plain": text, "text/html": self.frame() + note, **self.still()}
        bundle = shown._repr_mimebundle_(**options)
        data, *rest = bundle if isinstance(bundle, tuple) else (bundle,)
        return ({**data, "text/plain": text}, *rest) if rest else data


@cache
def widget_class() -> type[Any]:
    """Define the widget's class, or raise an error that names what to install."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"the widget needs anywidget: {_HINT}") from error

    class ViewerWidget(anywidget.AnyWidget):
        """The viewer; `state` follows what is looked at."""

        _esm = page.script()
        payload = traitlets.Bytes(b"").tag(sync=True)
        state = traitlets.Dict({}).tag(sync=True)
        still: Mapping[str, str] = {}

        def _repr_mimebundle_(self, **options: Any) -> Any:
            bundle = super()._repr_mimebundle_(**options)
            if isinstance(bundle, tuple):
                return ({**self.still, **bundle[0]}, *bundle[1:])
            return bundle and {**self.still, **bundle}

    return ViewerWidget


class Frame:
    """HTML that a notebook displays."""

    def __init__(
        self,
        document: str,
        reason: str,
        to_file: str,
        still: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._document = document
        self._reason = reason
        self._to_file = to_file
        self._still = still

    def __repr__(self) -> str:
        return (
            f"{self._reason}; in a notebook without it the viewer is a frame, and anywhere "
            f"{self._to_file} writes it to a file"
        )

    def _repr_png_(self) -> str | None:
        return self._still.get("image/png")

    def _repr_html_(self) -> str:
        return f"{self._document}<p>{html.escape(self._reason)}; shown in a frame instead.</p>"
