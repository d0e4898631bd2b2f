"""Hang and deadlock detection: the watchdog of a call.

looks       asks silent ranks where they are
whereabouts a rank's answer: its blocking call, and the flight recorder; quiet: has it moved?
deadlock    the proof, from all answers, that ranks can never go on
"""
