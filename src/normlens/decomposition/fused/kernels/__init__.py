"""The Triton kernels, and nothing else.

| module | holds |
|---|---|
| `pieces` | functions that the kernels share, from split products to the sums that they leave |
| `preparation` | operands: scaled, rounded and projected |
| `by_source`, `matrices` | the sums of the feed-forward stage |
| `hidden_rows` | hidden rows of all neurons, mixed for a source |
| `norms` | norms from sums |
| `factored` | norms before the feed-forward block |
"""
