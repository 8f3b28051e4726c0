"""What other libraries say of themselves when they are imported, kept off a user's screen."""

from __future__ import annotations

import logging

#: Loggers of what transformers imports where it is installed; what they say then (torchao about
#: kernels for other GPUs) is nothing about the user's question.
TALKATIVE = ("torchao", "torch.utils._pytree")


def hush() -> None:
    """Let these loggers report errors alone; for processes that are NormLens's own."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
