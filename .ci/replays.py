"""Recorded runs as pictures that the site's script can play: on a page of their own, and where
they are taught."""

import html
import json
from pathlib import Path

PAGE = """# Replays

Each picture is a **recorded run**. In the pipelines and in the ring, four ranks exchange real
messages, and each computation or message takes its planned time. Press *Play*, or *Step* from one
end of a box to the next. In a pipeline, look at rank 3 at the start, and at rank 0 at the end.

"""
COLORS = {
    "forward": "#4477aa",
    "backward": "#228833",
    "input gradient": "#66bb77",
    "weight gradient": "#ccbb44",
    "send a sum": "#aa3377",
    "send a result": "#4477aa",
    "gather": "#ccbb44",
    "gathered": "#4477aa",
    "waiting": "#999999",
    "prefill": "#332288",
    "decode": "#44aa99",
}
WIDTH, LEFT, TALL, TOP = 900, 80, 34, 26


def runs_of(folder: Path) -> dict[str, dict]:
    """Return the recorded runs by name, in the order of the weeks that teach them."""
    files = sorted(folder.glob("*.json"))
    runs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return dict(sorted(runs.items(), key=lambda run: (run[1]["notebook"], run[1]["before"])))


def replays(runs: dict[str, dict], pages) -> str:
    """Return the page of all recorded runs, with links to those of the notebooks that are pages."""
    parts = [PAGE]
    for run in runs.values():
        parts.append(f"## {run['title']}\n")
        if run["notebook"] in pages:
            parts.append(f"Taught in [this notebook](notebooks/{run['notebook']}.ipynb).\n")
        parts.append(raw(run))
    return "\n".join(parts)


def put(cells: list[dict], run: dict):
    """Add a run to a notebook's cells: at the end of its section, which is before a heading.

    Raises:
        ValueError: the notebook has no such heading.
    """
    heads = ["".join(cell["source"]).startswith(run["before"]) for cell in cells]
    text = f"**A recorded run: {run['title']}.** Press *Play*, or *Step*.\n\n{raw(run)}"
    place = heads.index(True)
    about = {"cell_type": "markdown", "id": f"replay-{place}", "metadata": {}}
    cells.insert(place, about | {"source": text})


def raw(run: dict) -> str:
    return f"```{{raw}} html\n{replay(run)}\n```\n"


def replay(run: dict) -> str:
    """Return the whole run as SVG, with its legend."""
    end = max(box["end"] for box in run["boxes"])
    scale = (WIDTH - LEFT - 10) / end
    tall = TOP + TALL * len(run["rows"]) + 10
    title = html.escape(run["title"])
    lines = [
        f'<div class="replay" data-left="{LEFT}" data-scale="{scale:.5f}" data-end="{end}" '
        f'data-unit="{html.escape(run["unit"])}" data-busy="{html.escape(run["busy"])}" '
        f'data-seconds="{run["seconds"]}">',
        f'<svg viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{title}" '
        'font-family="sans-serif" font-size="13" fill="currentColor">',
    ]
    for number, name in enumerate(run["rows"]):
        y = TOP + TALL * number
        lines.append(f'<text x="4" y="{y + 20}">{html.escape(name)}</text>')
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y + 30}" y2="{y + 30}" '
            'stroke="currentColor" stroke-opacity="0.2"/>'
        )
    for box in run["boxes"]:
        x, y = LEFT + box["start"] * scale, TOP + TALL * box["row"]
        wide = (box["end"] - box["start"]) * scale
        lines.append(
            f'<g data-start="{box["start"]}" data-end="{box["end"]}">'
            f'<rect x="{x:.2f}" y="{y + 2}" width="{wide:.2f}" height="27" stroke="white" '
            f'fill="{COLORS[box["kind"]]}"/>'
            f'<text x="{x + 3:.2f}" y="{y + 20}" fill="white">{html.escape(box["label"])}</text>'
            "</g>"
        )
    kinds = dict.fromkeys(box["kind"] for box in run["boxes"])
    legend = ", ".join(f'<span style="color:{COLORS[kind]}">■</span> {kind}' for kind in kinds)
    lines.append(
        f'<line class="now" x1="{WIDTH - 10}" x2="{WIDTH - 10}" y1="{TOP - 6}" y2="{tall - 8}" '
        'stroke="#cc3311" stroke-width="2"/></svg>'
        f"<p>{legend}. {html.escape(run['about'])}</p></div>"
    )
    return "\n".join(lines)
