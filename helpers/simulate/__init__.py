"""Performance model, roofline, network topology, alpha-beta: clusters that you do not have.

hardware, topology   processors, links and clusters as numbers: A100, H100, …, DGX_A100, DGX_H100
collective_time      seconds of a collective, by rings, rails and trees
data_parallel, tensor_parallel, three_axes, zero    one axis at a time, short to read
kernels              seconds of a block on one GPU: products by shape, memory, launches by the host
plan, links, memory  a plan for a cluster; the seconds of its messages; its bytes by kind
step_time            seconds of a step of any plan
calibrate, predict   three factors from measured steps; iteration times as CSV, by the command line

No module here imports PyTorch.
"""
