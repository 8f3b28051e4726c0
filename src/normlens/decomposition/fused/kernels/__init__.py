"""The Triton kernels of the feed-forward stage, and nothing else.

| module | holds |
|---|---|
| `pieces` | what the kernels share, from split products to the sums that they leave |
| `by_source`, `by_target` | the stage itself |
| `preparation` | what comes before and after it |
"""
