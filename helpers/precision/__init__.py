"""Mixed precision, loss scaling, fp8, bf16, fp16, rounding, autocast, fused AdamW.

formats    floating-point formats as data: bits, ranges, spacing, all their numbers
rounding   to the nearest number of a format, or to a neighbour at random
exponents  count numbers by their exponent
scaling    the factor of the loss, adapted as `torch.amp.GradScaler` does
policy     a small autocast: three lists choose the format of each operation
recorder   which operations ran, and in which format
blocks     int8 or int4 with a scale for each block, two int4 numbers in a byte
fp8        linear layers whose products have 8-bit inputs, emulated
overflow   the first operation that overflows or makes a NaN
fused_adam AdamW in Triton: one launch updates all parameters of a group
"""
