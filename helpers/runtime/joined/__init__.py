"""Join the ranks that an elastic launcher started: torchrun, accelerate, srun, mpiexec.

member      this process as one of those ranks
rendezvous  the key-value store where the ranks meet; key: the secret that proves them
gpus        a GPU for each rank
heartbeat   how each rank learns of the others' failures (watchdog)
job         a call as a folder: saved in a notebook, run on a cluster, read back
"""
