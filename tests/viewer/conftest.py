"""A real browser, and pages that may not reach the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair_examples import fast_tokenizer, with_head

import normlens

ROOT = Path(__file__).resolve().parents[2]


class Opened:
    """A viewer in a page: what it shows, read back from the page itself."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def _console(self, message: Any) -> None:
        # Reading pixels back, as the tests do, makes the browser warn about speed.
        if message.type in ("error", "warning") and "getImageData" not in message.text:
            self.problems.append(f"{message.type}: {message.text}")

    def open(self, path: Path, state: str = "") -> Opened:
        self.page.goto("about:blank")
        self.page.goto(f"{path.resolve().as_uri()}#{state}")
        self.settled()
        if self.page.locator('[data-action="more"][aria-expanded="false"]:visible').count():
            self.page.click('[data-action="more"]')
        return self

    def settled(self) -> Opened:
        self.page.wait_for_selector('.normlens[data-busy="false"]')
        return self

    def root(self, name: str) -> str | None:
        return self.page.get_attribute(".normlens", f"data-{name}")

    def choose(self, control: str, value: str) -> Opened:
        self.page.click(f'[data-control="{control}"] [data-value="{value}"]')
        return self.settled()

    def click(self, selector: str) -> Opened:
        self.page.click(selector)
        return self.settled()

    def key(self, name: str) -> Opened:
        self.page.keyboard.press(name)
        return self.settled()

    def save(self, kind: str, folder: Path) -> Path:
        """Press a button to save, and return the file."""
        with self.page.expect_download() as download:
            self.page.click(f'[data-save="{kind}"]')
        path = folder / download.value.suggested_filename
        download.value.save_as(path)
        return path

    def pressed(self, control: str) -> str | None:
        return self.page.get_attribute(
            f'[data-control="{control}"] [aria-pressed="true"]', "data-value"
        )

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def svg_texts(self, selector: str) -> list[str]:
        return [text or "" for text in self.page.locator(selector).all_text_contents()]

    def values(self, figure: str = "map") -> np.ndarray:
        """The numbers behind the drawn map or difference."""
        found = self.page.evaluate(
            """(figure) => {
              const app = document.querySelector('#normlens-page').viewer;
              const heat = app.views[app.state.view].current;
              return [heat.rows.length, heat.columns.length, [...heat.map]];
            }""",
            figure,
        )
        return np.array(found[2]).reshape(found[0], found[1])

    def pixels(self, figure: str = "map") -> np.ndarray:
        """Colours in the middle of each cell, (rows, columns, 3), as the canvas has them."""
        found = self.page.evaluate(
            """(figure) => {
              const root = document.querySelector('#normlens-page').shadowRoot;
              const canvas = root.querySelector(`[data-figure="${figure}"] canvas`);
              const heat = (() => {
                const app = document.querySelector('#normlens-page').viewer;
                return app.views[app.state.view].current;
              })();
              const [r0, r1] = heat.window.rows, [c0, c1] = heat.window.columns;
              const context = canvas.getContext('2d');
              const out = [];
              for (let i = 0; i < r1 - r0; i++) for (let j = 0; j < c1 - c0; j++) {
                const x = Math.floor((j + 0.5) * canvas.width / (c1 - c0));
                const y = Math.floor((i + 0.5) * canvas.height / (r1 - r0));
                out.push([...context.getImageData(x, y, 1, 1).data.slice(0, 3)]);
              }
              return [r1 - r0, c1 - c0, out];
            }""",
            figure,
        )
        return np.array(found[2]).reshape(found[0], found[1], 3)

    def cell(self, target: int, source: int, figure: str = "map") -> tuple[float, float]:
        """Where a cell is in the window."""
        rows, columns = self.values(figure).shape
        box = self.page.locator(f'[data-figure="{figure}"] canvas').bounding_box()
        return (
            box["x"] + (source + 0.5) * box["width"] / columns,
            box["y"] + (target + 0.5) * box["height"] / rows,
        )


@pytest.fixture
def viewer(browser):
    """A page without network; whatever it asks for beyond its own file fails the test."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 900}, offline=True, accept_downloads=True
    )
    asked: list[str] = []

    def answer(route: Any) -> None:
        url = route.request.url
        if not url.startswith(("file:", "data:", "blob:", "about:")):
            asked.append(url)
            route.abort()
        else:
            route.continue_()

    context.route("**/*", answer)
    opened = Opened(context.new_page())
    yield opened
    context.close()
    assert asked == []
    assert opened.problems == []


@pytest.fixture(scope="session")
def soap(minilm):
    """A real sentence with a word of several subwords."""
    return minilm.maps("She teaches soapy opera history.")


@pytest.fixture(scope="session")
def soap_html(soap, tmp_path_factory):
    return soap.to_html(tmp_path_factory.mktemp("viewer") / "soap.html")


@pytest.fixture(scope="session")
def translated():
    """A tiny encoder–decoder's maps: two layers of each stack, words of several tokens."""
    model = with_head("bart", encoder_layers=2, decoder_layers=2)
    lens = normlens.load(model, fast_tokenizer())
    return lens.maps("the small house", "la maison verte")
