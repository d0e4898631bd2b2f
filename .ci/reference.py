"""The site's reference of `helpers`: a page for each package, and an index with a line each."""

import ast
from pathlib import Path

INDEX = """# Reference

Every module of `helpers`, from its docstrings. A package imports only from lower floors.
"""


def write(root: Path, source: Path, packages: str) -> str:
    """Write a page for each package of `helpers`, and return the page that lists their modules.

    Args:
        packages: a pattern of their names.
    """
    (source / "reference").mkdir(exist_ok=True)
    lines, pages = [INDEX], []
    for package in sorted(path for path in (root / "helpers").glob(packages) if path.is_dir()):
        files = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for path in sorted(package.rglob("*.py"))
            if not path.name.startswith("__main__")
        }
        if files:
            text = f"# `helpers.{package.name}`\n\n" + "\n".join(map(section, files))
            (source / "reference" / f"{package.name}.md").write_text(text, encoding="utf-8")
            pages.append(f"reference/{package.name}")
            lines.append(f"## [{package.name}](reference/{package.name}.md)\n")
            lines += [f"- {{py:mod}}`{name}`: {first(path)}" for name, path in files.items()]
            lines.append("")
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *pages, "```", ""])


def section(name: str) -> str:
    """Return the part of a page that Sphinx fills with a module's docstrings."""
    return f"## `{name}`\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n```\n"


def first(path: Path) -> str:
    """Return the first line of a file's docstring."""
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return about.split("\n")[0]
