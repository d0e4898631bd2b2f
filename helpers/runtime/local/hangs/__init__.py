"""Hang and deadlock detection: the watchdog of a call.

deadlock    asks silent ranks where they are, and proves from all answers that some never go on
whereabouts a rank's answer: its blocking call, and the flight recorder; quiet: has it moved?
"""
