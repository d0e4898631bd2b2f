"""Pipeline parallelism: GPipe, 1F1B, interleaved, zero bubble, PipeDream; stages, micro-batches.

This rank's stages of a model, and an engine that runs any schedule.

Schedules, and the bubble of each, are in `helpers.plans.schedules`.

split      cut the layers into stages by cost
stages     the transform: this rank's stages, and the parts of their parameters
execution  run one rank's order of a schedule: receive, compute, send
engine     what is computed in a training step
backward   a backward in two parts, for zero-bubble schedules
paced      stages that sleep for their planned time, so that a laptop shows a schedule's bubble
pipedream  asynchronous 1F1B with weight stashing, a demonstration outside the one training step

Sources: Huang et al. 2019 (GPipe), arXiv:1811.06965; Narayanan et al. 2020, arXiv:2006.09503, and
2021, arXiv:2104.04473; Qi et al. 2023, arXiv:2401.10241.
"""
