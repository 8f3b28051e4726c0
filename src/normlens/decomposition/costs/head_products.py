"""The cost of the head products ``B_h W_k``, from a head's value vector to the neurons.

``Q_jh = U_jh W_k = v_jh (B_h W_k)``: the rows of n sources come from U, which takes
n·k·H·2dm operations, or from the head products, which takes k·H·2·d_head·dm operations to form
them and then n·k·H·2·d_head·m.
"""

from __future__ import annotations


def head_products_pay(d_head: int, d: int, tokens: int) -> bool:
    """Whether head products that are formed for n tokens cost less than they save.

    ``H·d_head·d·m + n·H·d_head·m < n·H·d·m``, from which H and m cancel.
    """
    return d_head * (d + tokens) < tokens * d


def head_product_elements(heads: int, d_head: int, m: int, projections: int) -> int:
    """Elements of the head products (k, H, d_head, m)."""
    return projections * heads * d_head * m


def head_product_operations(heads: int, d_head: int, d: int, m: int, projections: int) -> int:
    """Operations that form the head products: each element is a sum over d dimensions."""
    return 2 * d * head_product_elements(heads, d_head, m, projections)


def row_operations(sources: int, heads: int, width: int, m: int, projections: int) -> int:
    """Operations of Q_jh from vectors of `width` numbers: d for U, d_head with head products."""
    return 2 * sources * projections * heads * width * m
