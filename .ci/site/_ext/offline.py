"""Remove what a page would load from another host, so that the site reads without a network."""

from sphinx.application import Sphinx


def local_only(app: Sphinx, pagename: str, templatename: str, context: dict, doctree):
    """Keep the scripts and styles that are files of the site."""
    for kind in ("script_files", "css_files"):
        context[kind] = [
            file
            for file in context.get(kind, ())
            if not str(getattr(file, "filename", file)).startswith(("http:", "https:", "//"))
        ]


def setup(app: Sphinx):
    app.connect("html-page-context", local_only, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
