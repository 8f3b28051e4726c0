"""What each way through a layer costs, in operations and bytes: every formula once.

| module | holds |
|---|---|
| `shape` | the sizes of a feed-forward stage |
| `gram` | norms before the feed-forward block |
| `tiles` | PyTorch: tiles, matrices, sampled players; the least memory |
| `paths` | each head's path to the neurons, and whether forming it pays |
| `kernels` | the GPU kernels: by source, gather, matrices |
| `kernel_memory` | what those keep in memory |
| `batches` | memory of a sequence, and how many fit on a device |

Nothing here runs a model or needs Triton: everything is a function of sizes. The choices between
the ways are in `decomposition.plan`.
"""
