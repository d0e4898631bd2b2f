"""A page's buttons: download a notebook; on the repository's forge, read it, run it, discuss it.

The forge's address is COURSE_REPOSITORY, else that of git's remote `origin`. Building needs no
other host, and a page without a known forge has no buttons for it.
"""

import os
import re
import subprocess

from sphinx.application import Sphinx

FORGE = re.compile(r"(?:https://(?:[^@/]*@)?|git@)((?:github|gitlab)\.com)[:/](.+?)(?:\.git)?/?$")


def repository(folder: str) -> str:
    """Return the https address of the course's repository; "" if it is on no known forge."""
    asked = ["git", "-C", folder, "remote", "get-url", "origin"]
    address = os.environ.get("COURSE_REPOSITORY")
    if address is None:
        address = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    found = FORGE.match(address)
    return f"https://{found[1]}/{found[2]}" if found else ""


def options(folder: str) -> dict:
    """Return the theme's options for the forge's buttons."""
    address = repository(folder)
    if not address:
        return {}
    launch = {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}
    if "github.com" in address:
        launch["colab_url"] = "https://colab.research.google.com"
    found = {"repository_url": address, "repository_branch": "main", "use_source_button": True}
    return found | {"launch_buttons": launch}


def add(app: Sphinx, pagename: str, templatename: str, context: dict, doctree):
    """Put the button to download a notebook before the others, and the one to discuss behind."""
    if doctree is None:
        return
    if context.get("page_source_suffix") == ".ipynb":
        url = context["pathto"](f"downloads/{pagename}.ipynb", 1)
        words = "Download this notebook, without outputs"
        context["header_buttons"].insert(0, link(url, "download", words, "download-notebook"))
    if address := app.config.html_theme_options.get("repository_url"):
        place = "discussions" if "github.com" in address else "-/issues"
        button = link(f"{address}/{place}", "comments", "Ask and discuss", "discuss")
        context["header_buttons"].append(button)


def link(url: str, icon: str, words: str, name: str) -> dict:
    """Return a button as the theme has them."""
    looks = {"icon": f"fas fa-{icon}", "tooltip": words, "label": f"{name}-button"}
    return {"type": "link", "url": url, "text": "", **looks}


def setup(app: Sphinx):
    app.connect("html-page-context", add, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
