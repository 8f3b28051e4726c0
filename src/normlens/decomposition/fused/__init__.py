"""The feed-forward stage on a GPU, by kernels that leave a few sums per pair in memory.

| module | holds |
|---|---|
| `kernels` | the Triton kernels |
| `launching` | how a kernel is called |
| `operands` | what the kernels multiply: scaled, padded, in the type that a precision asks for |
| `factored` | norms before the block |
| `stage` | one batch's operands, and the norms that follow from the sums |
| `way`, `sources`, `targets` | the ways through the stage: what each launches |
| `ways` | the cost model that chooses between them |
"""
