"""Serving engine: continuous batching, chunked prefill, preemption, prefix caching, TTFT and TPOT.

The division of work is the usual one. `policies.py` is the **scheduler**: data in, a plan out.
`helpers.models.caches.paged` is the **block manager**. `runner.py` is the **model runner**: it
computes what a plan says. `engine.py` is the loop around the three, and `metrics.py` is its record.
"""
