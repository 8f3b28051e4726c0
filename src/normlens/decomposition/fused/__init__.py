"""The feed-forward stage on a GPU, as one kernel that leaves a few sums per pair in memory.

| module | holds |
|---|---|
| `kernel` | the Triton kernel; the only module that imports Triton |
| `operands` | what the kernel multiplies: scaled, padded, in the type that a precision asks for |
| `stage` | launches, and the norms that follow from the sums |
"""
