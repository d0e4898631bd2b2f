"""Pipeline schedules, communication volume, activation memory, ZeRO: plans as pure data.

activation_memory   bytes that a block keeps for its backward, term by term
decode_traffic      messages of a tensor-parallel decoding step
deepspeed_config    a DeepSpeed configuration: batch, sharding, offloading, bytes
handover            bytes of a prompt's cache that travel from one rank to another
megatron_zero       published: ZeRO-3 beside 3D parallelism
messages            a step's messages as data, and their bytes on the wire
parallel_traffic    ZeRO-3 beside tensor and pipeline parallelism: which sends less
schedules           the order of each rank's computations in a pipeline, checked, timed and drawn
sequence_traffic    bytes of a cut sequence: scans and convolutions beside attention
step_messages       all messages of a training step: dp with ZeRO, tp, sequence parallel, pp
unit_memory         peak memory of fully sharded training (FSDP), moment by moment
zero_memory         bytes of model states on a rank by ZeRO stage; the largest model that fits
zero_traffic        messages of gradients and parameters by ZeRO stage
"""
