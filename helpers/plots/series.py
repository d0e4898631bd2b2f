"""From what a notebook has, frames, mappings, sequences, to named series of points."""

from collections.abc import Mapping


def named_series(data, x=None, y=None, by=None) -> dict[str, tuple[list, list]]:
    """The series in `data`, as name -> (x values, y values).

    Args:
        data: a DataFrame; a pandas Series; a sequence of y; or a mapping of names to a pandas
            Series, a sequence of y, a pair (x values, y values), a DataFrame, or a function of x.
        x: of a DataFrame, the column of x values; by default its index. Otherwise the x values
            themselves, for sequences of y and for functions.
        y: of a DataFrame, the column of y values; by default every column is a series.
        by: of a DataFrame, the column whose values tell the series apart: "rank" gives the series
            "rank 0", "rank 1", …

    Raises:
        ValueError: there is nothing to draw, x and y differ in length, or a function comes
            without x.
    """
    if hasattr(data, "columns"):
        found = from_frame(data, x, y, by)
    elif isinstance(data, Mapping):
        found = {}
        for name, values in data.items():
            if hasattr(values, "columns"):
                found |= {f"{name} {n}".strip(): v for n, v in from_frame(values, x, y, by).items()}
            else:
                found[str(name)] = pair(str(name), values, x)
    else:
        found = {"": pair("", data, x)}
    if not found:
        raise ValueError("no series to draw")
    for name, (xs, ys) in found.items():
        if len(xs) != len(ys):
            raise ValueError(f"series {name!r} has {len(xs)} x values and {len(ys)} y values")
    return found


def from_frame(frame, x, y, by):
    if by is not None:
        groups = frame.groupby(by, sort=True)
        return {f"{by} {key}": columns(group, x, y) for key, group in groups}
    if y is not None:
        return {"": columns(frame, x, y)}
    return {str(name): columns(frame, x, name) for name in frame.columns if name != x}


def columns(frame, x, y):
    return list(frame.index if x is None else frame[x]), list(frame[y])


def pair(name, values, x):
    """One series as (x values, y values)."""
    if callable(values):
        if x is None:
            raise ValueError(f"series {name!r} is a function: give the x at which to draw it")
        return list(x), [values(each) for each in x]
    if isinstance(values, tuple) and len(values) == 2 and hasattr(values[0], "__len__"):
        return list(values[0]), list(values[1])
    if hasattr(values, "index") and hasattr(values, "to_numpy"):
        return list(values.index), list(values)
    values = list(values)
    return list(range(len(values)) if x is None else x), values
