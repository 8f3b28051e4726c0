"""The feed-forward stage on a GPU: kernels that leave only a few sums per pair in memory.

| module | holds |
|---|---|
| `kernels` | the Triton kernels |
| `launching` | calls of kernels |
| `precision`, `tiling` | how products are formed; sizes of programs and operands |
| `operands` | the kernels' operands: scaled, padded, in the type that a precision asks for |
| `source_rows` | the operands that are mixed: rows of each source |
| `factored` | norms before the feed-forward block |
| `rows` | steps of the algebra in one pass over rows of vectors |
| `tail` | the steps behind the block, and the sums that their norms need |
| `stage` | the operands of one batch, and its norms from the sums |
| `method` | the base class of the methods that fill the sums |
| `by_source` | the method source by source: everything in one kernel |
| `matrices` | the method target by target: one matrix for each |
| `choice` | the choice of the cheapest method, and the stage from job to norms |
"""
