"""AdamW in Triton: one launch updates all parameters of a group.

`optimizer.FusedAdamW` is the optimizer. The other files are its steps: `rule` (the formula),
`conversion` (between number formats), `kernel` (loads, rule, stores), `table` (where the tensors
are), `compiled` (what a GPU would run).
"""
