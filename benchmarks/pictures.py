"""The pictures of README.md: the scopes of one layer, and the viewer.

    python benchmarks/pictures.py

It needs the embedded model minilm, playwright and Chromium (CHROMIUM names another binary).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import normlens
from normlens.exports import map_export as export

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TEXT = "She teaches soap opera history."
STATE = "layer=3&scope=FF&norm=source&special=0&pair=5:1"


def main() -> None:
    maps = normlens.load("minilm").maps(TEXT)
    export.write(maps, IMAGES / "soap.png", layers=4, overwrite=True)
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = maps.to_html(Path(folder) / "soap.html")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 850}, device_scale_factor=1.25)
        page.goto(f"{path.as_uri()}#{STATE}")
        page.wait_for_selector('.normlens[data-busy="false"]')
        page.screenshot(path=IMAGES / "viewer.png")
        browser.close()


if __name__ == "__main__":
    main()
