"""Exercises of week 10: scans, and state space models."""
