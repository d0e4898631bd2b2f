"""Grade submitted notebooks: the judge is this process, the students' functions run in a sandbox.

    definitions   find an exercise's function in a notebook, with what it needs
    sandbox       start a program without network, with limits, and see when it breaks them
    inside        that program: defines the function, calls it, answers with plain data
    plain         plain data, and a few of the course's own types, as bytes
    stand_in      the judge's stand-in for the function: it asks the sandbox
    grade         all submissions: a table of verdicts

What goes into the sandbox may be pickled. What comes out is JSON and raw numbers, of limited size,
and is never unpickled. The checks and solutions of the exercises are no files of the sandbox.

One thing a determined student can still forge: where a check runs on ranks, a part of it measures
beside the student's function, in the same process. It reports bytes and messages, for example.
"""
