"""The program of a rank, in its own process.

program     rendezvous and process group, then one call after another
listener    a thread that answers the notebook meanwhile
debugger    pdb, one command at a time
ending      threads, exit functions and files at the end of the process
"""
