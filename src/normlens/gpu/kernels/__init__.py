"""The Triton kernels, and nothing else."""
