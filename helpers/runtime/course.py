"""Find the course's programs that notebooks run, also if a notebook is alone in its folder."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # the folder with `helpers`: a clone, or where pip installs
NOTEBOOKS = ROOT / "notebooks"  # in a clone


def course_file(name: str) -> Path:
    """Return the path of a file of `notebooks/`, such as "solutions/mpi/train_gpt.py".

    The student's own copy comes first: beside the notebook, or in the folder above. Then comes
    the clone that this package is in.

    Raises:
        FileNotFoundError: no folder has the file.
    """
    here = Path.cwd()
    for folder in (here, here.parent, NOTEBOOKS):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{name} is neither beside this notebook nor in a clone of the course. "
        f"Copy it from the course's notebooks/ into {here}."
    )
