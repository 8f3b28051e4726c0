"""GPU: Triton kernels, split products, CUDA graphs and transfers."""
