"""Exercise oracles: run a student's function on ranks, and name the first thing that is wrong."""
