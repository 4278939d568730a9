"""Settings of the web pages; `python docs/build.py` builds them from the texts where they stand.

Formulas become MathML, which browsers draw without a script. The margin lists the links of the first page,
docs/README.md. A style sheet (pages.css) puts the code of docs/paper/ beside its prose.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert

project = "ScaleRL in small code"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
nitpicky = True
root_doc = "docs/README"
include_patterns = ["docs/*.md", "docs/paper/*.md", "results/*.md", "exercises.md"]
html_theme = "furo"
html_static_path = ["pages.css"]
html_css_files = ["pages.css"]
html_title = project
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def list_pages(app, page, source):
    """Add a hidden table of contents for each section of the first page: its links, in their order."""
    if page == root_doc:
        for caption, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", source[0], re.M | re.S):
            links = "\n".join(re.findall(r"\]\(([\w./]+)\.md\)", section))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{links}\n```\n"


def draw(self, node, display):
    """Write a formula as MathML."""
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    app.connect("source-read", list_pages)
    app.add_node(nodes.math, override=True, html=(lambda self, node: draw(self, node, "inline"), None))
    app.add_node(nodes.math_block, override=True, html=(lambda self, node: draw(self, node, "block"), None))
