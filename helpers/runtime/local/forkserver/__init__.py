"""Fork server (zygote): how `launch` starts a fresh process for each rank in milliseconds.

server      the clean process that forks itself for each rank (start method: fork or spawn)
preload     what it imports before; bytecode: where compiled sources are kept
bootstrap   a fork becomes a rank: session, signals, descriptors
orphans     processes that ranks left behind (subreaper)
client      the notebook's side: start and end the server; processes: the ranks of one cluster
"""
