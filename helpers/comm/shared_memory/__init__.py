"""Shared memory inside a node: zero-copy collectives between the processes of one machine.

semaphores   counts in shared memory that one process raises and another waits for (sem_t)
barrier      a barrier that sleeps, and names the rank that died
segments     anonymous shared segments (memfd) that all ranks map
calls        one collective call: the ranks agree on it, then work piece by piece
collectives  all-reduce, reduce-scatter, all-gather and broadcast: `SharedMemory`
"""
