"""Owners hold parameters, gradients and optimizer state (master copies), and update them.

local    this rank holds everything; pending sums are made after the backward
`helpers.parallel.ddp` has the replicated owners.
"""
