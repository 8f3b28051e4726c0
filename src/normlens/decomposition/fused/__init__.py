"""The feed-forward stage on a GPU, by kernels that leave a few sums per pair in memory.

| module | holds |
|---|---|
| `kernels` | the Triton kernels |
| `launching` | how a kernel is called |
| `precision`, `tiling` | how products are formed; sizes of programs and operands |
| `operands` | what the kernels multiply: scaled, padded, in the type that a precision asks for |
| `factored` | norms before the block |
| `tail` | what follows the block, and the sums that its norms need |
| `stage` | one batch's operands, and the norms that follow from the sums |
| `way`, `sources`, `targets` | the ways through the stage: what each launches |
| `ways` | which of them is taken |
"""
