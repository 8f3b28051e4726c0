"""Costs of every method of analysing a layer, in operations and bytes: each formula once.

| module | holds |
|---|---|
| `shape` | the sizes of a feed-forward stage |
| `gram` | norms before the feed-forward block |
| `tiles` | PyTorch: tiles, matrices, sampled players; the least memory |
| `head_products` | the products B_h W_k of weights, and whether forming them pays |
| `kernels` | the GPU kernels: by source, matrices |
| `kernel_memory` | the memory that those kernels take |
| `batches` | memory of a sequence, and how many fit on a device |

Nothing here runs a model or needs Triton: everything is a function of sizes. The choices between
the methods are in `decomposition.plan`.
"""
