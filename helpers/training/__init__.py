"""The training loop; the comparison of a strategy with one process; the farm for many trainings."""
