"""Run one function on many ranks.

launch      a cluster of one call; cluster: ranks that live on; runs: what comes back
local/      starts ranks on this machine
joined/     joins the ranks that torchrun, accelerate, srun or mpiexec started

What both share:

launcher    which rank a launcher made of this process, if any
devices     the cores and GPUs that ranks get
worker      a rank, as the function that runs on it sees it
payload     functions, arguments and results as bytes; reducers: of what is taken apart for it;
            blame: what in them cannot travel
failure     one error that names the culprit; report and stacks: what it is made of
screen      bars and curves while a call runs
terminal    words for a terminal that may be ASCII
plain       results as JSON; private: files and folders that nobody else can reach
own         files and folders that nobody else can change; environment: variables set by default
proof       ranks prove to each other who they are; alone: a program in a network of its own
"""
