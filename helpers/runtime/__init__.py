"""Run one function on many ranks.

launch      a cluster for one call; cluster: ranks that live across calls; runs: the results
local/      starts ranks on this machine
joined/     joins the ranks that torchrun, accelerate, srun or mpiexec started

Both folders share these files:

launcher    which rank of a launcher this process is, if any
devices     the cores and GPUs for the ranks
worker      a rank, as the student's function sees it
payload     functions, arguments and results as bytes; reducers: values that travel in parts;
            blame: names the value that cannot travel
failure     one error that names the culprit; report and stacks: the parts of that error
screen      bars and curves while a call runs
terminal    text for a terminal that may know ASCII only
plain       results as JSON; private: files and folders that nobody else can reach
own         files and folders that nobody else can change; environment: variables set by default
proof       ranks prove to each other that they belong to one call
alone       runs a program in a network of its own
"""
