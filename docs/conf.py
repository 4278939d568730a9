"""Settings of the reading edition; `python docs/build.py` builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "ScaleRL in small code"
extensions = ["myst_parser", "passage"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nitpicky = True
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["passage.css"]
html_css_files = ["passage.css"]
html_title = project
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
