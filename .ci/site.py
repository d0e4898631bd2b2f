"""Build the course's site out of executed notebooks, with Sphinx: build/site/index.html.

    site.py [folder of executed notebooks]      by default the committed ones

The README's table of weeks gives their order, and the cards of the front page: see `front`. The
reference of `helpers` is made of its docstrings. `make course` executes the notebooks first.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import reference
from course import is_folded, is_note
from front import front_page, weeks_of
from replays import put, replay, replays, runs_of
from student import without_outputs

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Path(__file__).with_name("site")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def gather(root: Path, executed: Path, source: Path, packages: str = "*") -> Path:
    """Write all pages for Sphinx into the folder `source`. What was in it is removed.

    Args:
        packages: of `helpers`, in the reference: a pattern.
    """
    shutil.rmtree(source, ignore_errors=True)
    (source / "notebooks").mkdir(parents=True)
    shutil.copytree(root / "figures", source / "figures", ignore=shutil.ignore_patterns("*.py"))
    pages, runs = notebooks(root, executed), runs_of(SETTINGS / "replays")
    readme = (root / "README.md").read_text(encoding="utf-8")
    behind = {week[0].name: week[1:] for week in weeks_of(readme, pages)}
    for name, path in pages.items():
        place = source / "notebooks" / f"{name}.ipynb"
        place.parent.mkdir(exist_ok=True)
        parts = [f"{part.title} <{part.name}>" for part in behind.get(name, ())]
        own = [run for run in runs.values() if run["notebook"] == Path(name).name]
        place.write_text(page(path, parts, own), encoding="utf-8")
    (source / "README.md").write_text(readme, encoding="utf-8")
    more = ["Set up and use <README>", "plan", "replays", "reference", *guide(root, source)]
    text = (SETTINGS / "front.md").read_text(encoding="utf-8")
    front = front_page(text, readme, replay(runs["1f1b"]), pages, more, source)
    (source / "index.md").write_text(front, encoding="utf-8")
    (source / "replays.md").write_text(replays(runs, pages), encoding="utf-8")
    (source / "plan.md").write_text(planner(), encoding="utf-8")
    (source / "reference.md").write_text(reference.write(root, source, packages), "utf-8")
    check_links(root, source)
    return source


def notebooks(root: Path, executed: Path) -> dict[str, Path]:
    """Return the course's notebooks by name, each as it was last executed."""
    pages = {}
    for path in [*root.glob("notebooks/*.ipynb"), *root.glob("notebooks/project/*.ipynb")]:
        name = path.relative_to(root / "notebooks")
        newer = executed / name.name
        pages[name.with_suffix("").as_posix()] = newer if newer.exists() else path
    return pages


def guide(root: Path, source: Path) -> list[str]:
    """Copy the guide, with a hidden list of its weeks. Returns its other pages, the index last."""
    place = source / "notebooks" / "guide"
    if not (root / "notebooks" / "guide").exists():
        return []
    shutil.copytree(root / "notebooks" / "guide", place)
    names = sorted(path.stem for path in place.glob("*.md"))
    weeks = [name for name in names if name.startswith("week")]
    with (place / "README.md").open("a", encoding="utf-8") as file:
        file.write("\n```{toctree}\n:hidden:\n\n" + "\n".join(weeks) + "\n```\n")
    others = [name for name in names if name not in ("README", *weeks)]
    return [f"notebooks/guide/{name}" for name in (*others, "README")]


def page(path: Path, parts: Sequence[str] = (), runs: Sequence[dict] = ()) -> str:
    """Return the notebook for the site: pictures with their words and size, tables as HTML.

    The speaker's notes are left out. Code that JupyterLab folds is folded.

    Args:
        parts: notebooks that follow below it in the list of weeks, as a toctree has them.
        runs: recorded runs to replay, each at the end of its section.
    """
    nb = json.loads(path.read_text(encoding="utf-8"))
    nb["cells"] = [cell for cell in nb["cells"] if not is_note(cell)]
    for run in runs:
        put(nb["cells"], run)
    if parts:
        tree = "\n".join(["```{toctree}", ":hidden:", "", *parts, "```"])
        cell = {"cell_type": "markdown", "id": "parts", "metadata": {}, "source": tree}
        nb["cells"].append(cell)
    for cell in nb["cells"]:
        cell["metadata"].pop("slideshow", None)
        if is_folded(cell):
            cell["metadata"].setdefault("tags", []).append("hide-input")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            about = output.get("metadata", {}).get("image/png", {})
            if "image/png" in data and about:  # MyST-NB would drop what is known about a picture
                output["data"] = {"text/html": picture(data["image/png"], about)}
    return json.dumps(nb)


def picture(png: str | list[str], about: dict) -> str:
    """Return a picture as HTML, with its alternative text and its size."""
    encoded = "".join(png).replace("\n", "")
    size = "".join(f' {key}="{about[key]}"' for key in ("width", "height") if key in about)
    words = html.escape(about.get("alt", ""), quote=True)
    return f'<img alt="{words}"{size} src="data:image/png;base64,{encoded}">'


def planner(folder: Path = SETTINGS) -> str:
    """Return the page that plans a cluster, with the plans that `plans.py` found."""
    text = (folder / "plan.md").read_text(encoding="utf-8")
    return text.replace("PLANS", (folder / "plans.json").read_text(encoding="utf-8").strip())


def check_links(root: Path, source: Path):
    """Copy files that pages link and Sphinx does not know: scripts, tables, the guide's figures."""
    for path in [*source.rglob("*.md"), *source.rglob("*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        for target in set(LINK.findall(text)):
            target = target.split("#")[0].replace("\\", "")
            place = (path.parent / target).resolve()
            if not target or place.exists() or source.resolve() not in place.parents:
                continue
            original = root / place.relative_to(source.resolve())
            if original.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(original, place)


def build(
    root: Path = ROOT,
    executed: Path | None = None,
    warnings: bool = False,
    into: Path | None = None,
    packages: str = "*",
) -> Path:
    """Build the site in the folder `into`, by default root/build, and return its front page."""
    into = into or root / "build"
    source = gather(root, executed or root / "notebooks", into / "site-source", packages)
    out = into / "site"
    shutil.rmtree(out, ignore_errors=True)
    line = [sys.executable, "-m", "sphinx", "-b", "html", "-c", SETTINGS, "-j", "auto"]
    line += ["-d", into / "site-doctrees", *([] if warnings else ["-Q"]), source, out]
    done = subprocess.run(line, env={**os.environ, "COURSE_ROOT": str(root)})
    if done.returncode:
        sys.exit("Sphinx has failed. For its messages, run .ci/site.py --warnings")
    remove_foreign(out)
    for name in notebooks(root, root):  # to download: as a student gets it
        place = out / "downloads" / "notebooks" / f"{name}.ipynb"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(without_outputs(root / "notebooks" / f"{name}.ipynb"))
    return out / "index.html"


def remove_foreign(out: Path):
    """Remove what a theme's page would still load from another host: web fonts, for example.

    The themes also leave two templates among the files of the site, which are no pages.
    """
    for template in (out / "_static").glob("*.html"):
        template.unlink()
    loads = re.compile(
        r"""<(?:script|link)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*["'][^>]*>(?:\s*</script>)?"""
    )
    for file in out.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        new = loads.sub(lambda m: m[0] if 'rel="canonical"' in m[0] else "", text)
        if new != text:
            file.write_text(new, encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("executed", nargs="?", type=Path, help="a folder of executed notebooks")
    parser.add_argument("--warnings", action="store_true", help="show Sphinx's warnings")
    options = parser.parse_args(argv)
    print(build(executed=options.executed, warnings=options.warnings))


if __name__ == "__main__":
    main()
