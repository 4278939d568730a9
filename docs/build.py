"""Builds the reading edition, the paper and the code side by side: docs/_build/index.html.

    pip install -e '.[docs]' && python docs/build.py

Code is included from the modules by the name of its function (passage.py), never copied, so a page cannot drift from
it. A missing function, test, exercise, figure or link is an error.

Test: pytest tests/test_docs.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    from sphinx.cmd.build import main as sphinx

    out = HERE / "_build"
    failed = sphinx(["-W", "--keep-going", "-q", "-b", "html", "-d", str(out / ".doctrees"), str(HERE), str(out)])
    if not failed:
        print(f"open {out / 'index.html'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
