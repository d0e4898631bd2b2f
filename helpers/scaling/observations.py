"""Check the runs that a law is fitted to, once; an error names the wrong row."""

import numpy as np


def observations(**columns) -> list[np.ndarray]:
    """Return the columns as float64 arrays of one length.

    Raises:
        ValueError: no rows, columns of different lengths or with more than one dim, or a value that
            is not positive and finite. The message names the first wrong row (from 0) and its
            column.
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in columns.values()]
    shapes = {name: array.shape for name, array in zip(columns, arrays, strict=True)}
    if len(set(shapes.values())) != 1 or arrays[0].ndim != 1 or not len(arrays[0]):
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the columns must be lists, equally long and not empty: {listing}")
    bad = [~(np.isfinite(array) & (array > 0)) for array in arrays]
    rows = np.flatnonzero(np.any(bad, axis=0))
    if len(rows):
        row = rows[0]
        name, array = next((n, a) for n, a, b in zip(columns, arrays, bad, strict=True) if b[row])
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        raise ValueError(
            f"row {row}: {name} is {array[row]:g}; it must be positive and finite{more}"
        )
    return arrays


def distinct(values: np.ndarray) -> int:
    """Count the values that differ by more than about 2 %."""
    logs = np.sort(np.log(values))
    count, last = 1, logs[0]
    for value in logs:
        if value > last + 0.02:
            count, last = count + 1, value
    return count
