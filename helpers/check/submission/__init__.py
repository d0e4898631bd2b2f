"""The check of the course's project: run a student's whole script, and judge what it prints.

    project   the runs, in order, and the Verdict
    judge     compare the runs: curve, memory, resuming
    job       start the script on ranks by torchrun, wait for its end, read its lines
    rank      runs the script on one rank; notes the files that it writes; kills it when asked to

Nothing from the script is unpickled: its lines are JSON, and its checkpoints are never opened.
"""
