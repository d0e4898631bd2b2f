"""Sphinx's settings of the course's site. `.ci/site.py` gathers the pages and runs Sphinx.

The site loads nothing from another host: mathematics becomes MathML, fonts are the system's.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("COURSE_ROOT", HERE.parents[1]))
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]
import buttons  # noqa: E402  the course's own extension

project = "Training at Scale"
author = "the Training at Scale authors"
copyright = "the Training at Scale authors, MIT License"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",
    "mathml",
    "offline",
    "buttons",
]
html_math_renderer = "mathml"
highlight_language = "none"  # drawings of docstrings are no Python
exclude_patterns = ["notebooks/solutions/*"]

# Notebooks come executed.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = [
    "myst.header",  # a notebook may begin a section with ###
    "mystnb.mime_priority",
    "mystnb.unknown_mime_type",
    "misc.highlighting_failure",  # shell lines in Python cells
    "image.not_readable",
]

# The reference comes from the docstrings.
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have them
autodoc_use_type_comments = False  # there are none, and to look for them takes seconds
autodoc_preserve_defaults = True  # os.environ by its name, not the values of this machine
autodoc_mock_imports = ["deepspeed", "mpi4py"]  # importing them starts compilers or MPI
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Letters", "params_style")]
add_module_names = False

html_theme = "sphinx_book_theme"
html_title = "Training at Scale"
html_context = {"default_mode": "auto"}  # without it, the first page logs an error
html_static_path = [str(HERE / "_static")]
html_css_files = ["course.css"]
html_search_scorer = str(HERE / "scorer.js")
html_js_files = ["replay.js", "search.js", "plan.js", "download.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": True,
    "show_navbar_depth": 1,
    "max_navbar_depth": 2,
    "collapse_navbar": True,
    "show_toc_level": 2,
    "home_page_in_toc": False,
    # Else there is a bar with a second menu button, hidden, and the theme wires only the first.
    "navbar_persistent": [],
    **buttons.options(str(ROOT)),
}
