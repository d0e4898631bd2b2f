"""Triton kernels without a GPU: `interpret` runs them, `compiled` shows what a GPU would run."""
