"""Join the ranks that a launcher started.

member      this process as one of them
meeting     where they find one another; gpus: which GPU is whose
watch       how each learns of the others' failures
job         a call as a folder: saved in a notebook, run on a cluster, read back
"""
