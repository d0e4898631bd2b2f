"""Join the ranks that a launcher started.

member      this process as one of them
meeting     where they find one another; key: what they prove themselves with; gpus: which is whose
results     what they return, as plain data
watch       how each learns of the others' failures
job         a call as a folder: saved in a notebook, run on a cluster, read back
"""
