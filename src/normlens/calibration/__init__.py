"""The cost model of the kernels, fitted to the GPU at hand, and shapes checked there."""
