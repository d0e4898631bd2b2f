"""ZeRO, stages 1 to 3: sharded optimizer state, gradients, parameters (FSDP); prefetching.

Data parallel without copies of the same state, from scratch, in three stages.

Each stage is an owner for a Recipe. Each rank keeps 1/N of more of the training state:

    Zero1   the optimizer's state, and the master copies
    Zero2   and the gradients
    Zero3   and the parameters

All stages have one idea. The parameters of a unit lie in one padded row, and each rank has an equal
shard of that row. Gradients are summed by a reduce-scatter, parameters are completed by an
all-gather.

row          where tensors lie in a row; the memory of its parameters: whole (stages 1 and 2), or
             gathered when used (3)
gradients    the memory of a row's gradients: kept (stage 1), or sent and freed (stages 2 and 3)
stage1, stage2, stage3   the owners
refusals     optimizers that cannot update shards; parameters that were changed outside of a step
film         record each byte of a rank during a step

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC20, section 5 (the stages) and section 7 (their communication).
"""
