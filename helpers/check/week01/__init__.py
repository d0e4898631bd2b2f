"""Exercises of week 1: a mean over ranks, collectives made from messages, bytes, the roofline."""
