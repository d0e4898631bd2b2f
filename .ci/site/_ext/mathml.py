"""Write formulas as MathML, which browsers draw themselves: no script, no font from elsewhere."""

import html
import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
ROWS = re.compile(r"\\(begin|end)\{(?:align|aligned|split|gather|gathered)\*?\}")


def mathml(latex: str, display: str) -> str:
    """Return the formula as MathML; as its source, if the converter does not know a command."""
    latex = ROWS.sub(r"\\\1{align*}", latex)
    if "\\begin" not in latex and "\\\\" in latex:  # Sphinx removes what encloses the rows
        latex = f"\\begin{{align*}}{latex}\\end{{align*}}"
    try:
        return convert(latex, display=display)
    except Exception as error:
        logger.warning("no MathML for %r: %s", latex, error)
        return f"<code>{html.escape(latex)}</code>"


def visit_math(self, node):
    self.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def visit_math_block(self, node):
    formula = mathml(node.astext(), "block")
    self.body.append(f'<div class="formula">{formula}</div>\n')
    raise SkipNode


def setup(app: Sphinx):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
