"""Where the kernels run, their precisions, and the sizes of their programs."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from functools import cache

import torch

# Whether a device runs the kernels.


#: Whether torch multiplies short operands into float32 numbers.
HAS_WIDE_PRODUCTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
OLDEST_CAPABILITY = (8, 0)  # of GPUs that multiply bfloat16, and float16 fast enough
WIDEST = 1 << 14  # numbers of a vector that one program holds


def kernels_run_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can work on numbers of this type on `device`.

    Without a GPU in this machine, one that is recent enough, with Triton, is assumed.
    """
    if device.type != "cuda" or dtype != torch.float32:
        return False
    if not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY and has_triton()


@cache
def has_triton() -> bool:
    """Whether Triton is installed; warns once where it is missing."""
    if importlib.util.find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed, so the feed-forward stage runs as PyTorch tiles on this GPU, "
        "several times slower and in float32; `pip install triton` brings the fused kernel",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


# Precisions of the kernels: how their products are formed.


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


# Sizes of the kernels' programs and operands: padding, blocks of targets, neurons and dimensions.
#
# Nothing here needs Triton, so that costs can be computed where no kernel can run.


ALIGNMENT = 16  # elements; rows that the copy engine reads start at multiples of 16 bytes
SOURCE_BLOCK = 128  # sources whose rows one program forms
FEWEST_HEADS = 16  # of one product of the matrix units
#: The most neurons that "float32" sums up in one go: where its three products share one running
#: sum, and where the two small ones are added first.
LONGEST_SUM, LONGEST_SORTED_SUM = 4096, 16384
PROCESSORS = 132  # of a large GPU, each of which runs one program at a time


def aligned(size: int) -> int:
    """`size` rounded up to a multiple that the copy engine can read."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def block_of_heads(heads: int) -> int:
    """The number of heads that a program mixes, padded."""
    return max(FEWEST_HEADS, power_of_two(heads))


def block_of_dims(d: int) -> int:
    """The block of dimensions that pads d least, the widest of such blocks."""
    return min((256, 128, 64), key=lambda width: -(-d // width) * width)


def sources_at_once(limit: int, size: int) -> int:
    """How many sources with rows of `size` bytes fit into `limit`, in whole blocks of rows."""
    most = max(1, limit // size)
    return most - most % SOURCE_BLOCK if most > SOURCE_BLOCK else most


@dataclass(frozen=True)
class Tiling:
    """Sizes of one program of the method by source, and how it is run."""

    targets: int = 128
    dims: int = 256
    neurons: int = 64
    warps: int = 8
    stages: int = 3
    chunk: int = 1 << 30  # neurons that are summed up in one go

    @classmethod
    def choose(
        cls, n: int, d: int, m: int, precision: Precision, gated: bool, stored: bool
    ) -> Tiling:
        dims = block_of_dims(d)
        targets, warps = (64, 4) if n <= 64 else (128, 8)
        if targets == 64:
            dims = min(dims, 128)
        # A pair of operands for each product leaves room for fewer stages.
        pairs = precision.split and not stored
        neurons = 32 if pairs and gated else 64
        stages = 2 if pairs else 3
        if precision.split and m > (LONGEST_SORTED_SUM if stored else LONGEST_SUM):
            return cls(targets, min(dims, 128), neurons, warps, stages, LONGEST_SUM // 2)
        return cls(targets, dims, neurons, warps, stages)

    def waves(self, blocks: int, d: int) -> int:
        """How many programs a processor runs one after the other, for so many blocks of rows."""
        return -(-blocks * -(-d // self.dims) // PROCESSORS)


@dataclass(frozen=True)
class TargetTiling:
    """Sizes of the programs that work on one target or a tile of them."""

    tile: int = 64  # targets
    sources: int = 128
    neurons: int = 64
    dims: int = 256
    warps: int = 8
    #: What the product prefetches and what the sums behind it need fit into shared memory side by
    #: side. With three stages they do not, and Triton 3.6 gave norms that were wrong by 5 %.
    stages: int = 2

    @classmethod
    def choose(cls, d: int, split: bool) -> TargetTiling:
        return cls(dims=block_of_dims(d), neurons=32 if split else 64)
