"""AdamW in Triton: one launch updates all parameters of a group.

`optimizer.FusedAdamW` is the optimizer. The other files are its steps: `kernel` (loads, formula,
stores), `table` (where the tensors are), `compiled` (what a GPU would run).
"""
