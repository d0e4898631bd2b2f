"""Process launcher: fork server (zygote), process group, serialization, rendezvous, heartbeat.

launch      a cluster for one call; cluster: ranks that live across calls; runs: the results
local/      starts ranks on this machine: fork server, rank program, hang detection (watchdog)
joined/     joins the ranks of torchrun, accelerate, srun or mpiexec: rendezvous, heartbeat

What a rank may send back: in local/ what pickles and makes sense in another process (payload); in
joined/ plain data alone, never a pickle (plain); by `worker.log` numbers and words (worker).

Both folders share these files:

launcher    which rank of a launcher this process is, if any
devices     the cores and GPUs for the ranks
worker      a rank, as the student's function sees it
payload     serialization of functions, arguments and results
report      names the value that cannot be serialized; describes an exception as data
plain       serialization without pickle, for sockets that others may reach; JSON for files
failure     one error that names the culprit; stacks: the parts of that error
screen      text, bars and curves while a call runs
private     files and folders that nobody else can read, or change; the cache folder
course      the course's files, variables set by default, and which library to install
proof       ranks prove to each other that they belong to one call (authentication)
alone       runs a program in a network namespace of its own
"""
