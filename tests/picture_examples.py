"""A picture drawn by code, and an image classifier with random weights that looks at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers.utils import logging

from normlens.models.tiny import scramble, tiny_config

LABELS = {0: "dog", 1: "tabby cat", 2: "ball"}


def scene(height: int = 48, width: int = 48) -> np.ndarray:
    """Sky, ground, a tree and a red ball, (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    shades = y * 60 // height
    image = np.stack([120 + shades, 170 + shades // 2, 230 - shades // 3], -1).astype(np.uint8)
    image[y > 0.65 * height] = (90, 140, 60)
    ball = (x - 0.7 * width) ** 2 + (y - 0.62 * height) ** 2 < (0.16 * height) ** 2
    image[ball] = (210, 50, 40)
    image[(abs(x - 0.25 * width) < 0.03 * width) & (y > 0.4 * height) & (y < 0.75 * height)] = 60
    crown = (x - 0.25 * width) ** 2 + (y - 0.33 * height) ** 2 < (0.15 * height) ** 2
    image[crown] = (30, 100, 40)
    return image


def processor(size: int = 12) -> Any:
    """Resizes to a square and normalises, with Pillow alone."""
    return transformers.ViTImageProcessorPil(size={"height": size, "width": size})


def classifier() -> Any:
    """A tiny ViT with a classifier of three classes."""
    config = tiny_config("vit", num_labels=3, id2label=LABELS)
    model = transformers.ViTForImageClassification(config).eval()
    scramble(model, 3)
    return model


def saved_classifier(folder: Path) -> Path:
    """The same in a folder, with its processor."""
    logging.disable_progress_bar()
    classifier().save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder
