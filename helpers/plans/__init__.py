"""Pipeline schedules, communication volume, activation memory, ZeRO: plans as pure data.

activation_memory   bytes that a block keeps for its backward, term by term
decode_traffic      messages of a tensor-parallel decoding step; bytes of a prompt's handover
deepspeed_config    a DeepSpeed configuration: batch, sharding, offloading, bytes
expert_placement    copies of hot experts, packed by load; experts on nodes
expert_traffic      bytes of a mixture's rows, inside and between nodes; node-limited routing
local_steps         local SGD and DiLoCo: what replicas send that average from time to time
megatron_zero       published: ZeRO-3 beside 3D parallelism
messages            a step's messages as data, and their bytes on the wire
muon                Muon beside AdamW: matrices, FLOPs, state, messages
offload_bandwidth   efficiency against the bandwidth to host or disk (ZeRO-Infinity)
schedules           the order of each rank's computations in a pipeline, checked, timed and drawn
sequence_order      which tokens of a cut sequence each rank has: contiguous, zigzag, striped
sequence_traffic    bytes of a cut sequence: scans and convolutions beside attention
slow_links          ZeRO-3 over nodes: when quantised messages are faster
step_messages       all messages of a training step: dp with ZeRO, tp, sequence parallel, cp, ep, pp
zero_memory         bytes of model states by ZeRO stage; the largest model that fits; FSDP's peak
zero_traffic        messages by ZeRO stage, beside tensor and pipeline parallelism
"""
