"""Precisions of the kernels: how their products are formed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Products for one of split operands: (a + b)(c + d) without the smallest, b d.
SPLIT_PRODUCTS = 3


@dataclass(frozen=True)
class Precision:
    """How the kernels' products are formed. They are summed in float32 in every case."""

    name: str
    operand: torch.dtype  # of the second product; rows are mixed in float16 before it
    split: bool = False  # an operand is the sum of two numbers, a product that of three products

    @property
    def products(self) -> int:
        return SPLIT_PRODUCTS if self.split else 1

    @property
    def itemsize(self) -> int:
        """Bytes of an operand's element."""
        return 4 if self.split else 2


#: "tf32" has the significand of that type, 11 bits. Scaled float16 operands have the same one and
#: are multiplied twice as fast. Two of them have the 22 bits that "float32" needs, where two
#: bfloat16 numbers have 16.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float32", torch.float16, split=True),
        Precision("tf32", torch.float16),
        Precision("bfloat16", torch.bfloat16),
    )
}
