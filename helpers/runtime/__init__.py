"""Run one function on many ranks: fork server, launcher, process group, failure detection.

launch      a cluster for one call; cluster: ranks that live across calls; runs: the results
local/      starts ranks on this machine: fork server, rank program, hang detection
joined/     joins the ranks of torchrun, accelerate, srun or mpiexec: rendezvous, heartbeat

Both folders share these files:

launcher    which rank of a launcher this process is, if any
devices     the cores and GPUs for the ranks
worker      a rank, as the student's function sees it
payload     serialization of functions, arguments and results; blame: names what cannot travel
plain       serialization without pickle, for sockets that others may reach; JSON for files
failure     one error that names the culprit; report and stacks: the parts of that error
screen      bars and curves while a call runs; rows: what `worker.log` keeps
terminal    text for a terminal that may know ASCII only
private     files and folders that nobody else can read, or change; the cache folder
environment variables set by default; missing: which library to install
course      the course's programs that notebooks run
proof       ranks prove to each other that they belong to one call
alone       runs a program in a network of its own
"""
