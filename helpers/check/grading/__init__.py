"""Grade submitted notebooks: the judge is this process, the students' functions run in a sandbox.

    grade         all submissions: a table of verdicts
    submissions   what a folder has to grade: which exercise of which notebook
    definitions   read one notebook, in a process of its own: the functions, with what they need
    table         the rows, harmless in a spreadsheet, and their sum
    scores        a row for each student, and a page of feedback
    sandbox       start a program without network, with limits, and see when it breaks them
    frames        the messages to it and from it
    inside        that program: defines the function, calls it, answers with plain data
    plain         plain data, and a few of the course's own types, as bytes
    apart         in it, fork ranks that have nothing in common
    messages      on such a rank: a process group that can send and receive alone
    post          the judge carries these messages from rank to rank, and counts them
    stand_in      the judge's stand-in for the function: it asks the sandbox

What goes into the sandbox may be pickled. What comes out is JSON and raw numbers, of limited size,
and is never unpickled. The checks and solutions of the exercises are no files of the sandbox. The
inputs are drawn for each run of the grading, by the judge alone: see `helpers.check.hidden`.

Where a collective is built from messages (`ByMessages`), each rank gets its own inputs and nothing
else, and the judge requires the bytes and messages that it has carried itself.

What a determined student can still forge: a part of some checks runs beside the student's function,
in the same process. Where collectives are allowed, that part reports bytes and messages, compares
large tensors, and knows the inputs of all ranks. In `block_allocator` it plays the operations.

Inputs that stay as they are in the student's own check: `choose_wrapping` (a model of one size is
trained and measured), `scaled_step` (numbers at the edges of fp16), and the numbers of ranks.
"""
