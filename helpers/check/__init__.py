"""Exercise oracles: run a student's function on ranks, name the first thing that is wrong."""

from helpers.check.verdict import Verdict
from helpers.check.week01 import global_mean

__all__ = ["Verdict", "global_mean"]
