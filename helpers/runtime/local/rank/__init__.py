"""The program of a rank (worker process): rendezvous, call loop, debugger (pdb), exit.

program     joins the process group, then runs one call after another
listener    a thread that answers the notebook meanwhile
debugger    pdb, one command at a time
ending      threads, exit functions and files at the end of the process
"""
