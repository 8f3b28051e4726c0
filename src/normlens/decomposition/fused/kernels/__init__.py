"""The Triton kernels, and nothing else.

| module | holds |
|---|---|
| `pieces` | what the kernels share, from split products to the sums that they leave |
| `by_source`, `by_target` | the feed-forward stage itself |
| `gathering` | hidden rows of active neurons |
| `factored` | norms before the feed-forward block |
| `preparation` | what comes before and after it |
"""
