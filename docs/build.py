"""Builds the reading edition, the paper and the code side by side: docs/_build/index.html.

    pip install -e '.[docs]' && python docs/build.py

Code is included from the modules by the name of its function (passage.py), never copied, so a page cannot drift from
it. A missing function, test, exercise or figure is an error, and so is a link that leads nowhere, in the built pages or
in the texts of the repository.

Test: pytest tests/test_docs.py
"""

import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ELSEWHERE = re.compile(r"[a-z]+:|//")  # https:, mailto:, data:
KEPT = "docs|results|figures|tests|base|plumbing|verify|lab|course"  # folders whose files texts name


class Page(HTMLParser):
    """The targets of a built page: `ids` that a link may end in, and `links` to elsewhere in the edition."""

    def __init__(self, text):
        super().__init__()
        self.ids = {""}
        self.links = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[name] for name in ("href", "src") if found.get(name) and not ELSEWHERE.match(found[name])]


def broken_pages(folder):
    """Links in the built pages of a folder that lead to no file or to no place in it: "page: link"."""
    pages = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            file, _, place = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            inside = target not in pages or place in pages[target].ids
            if not target.is_file() or not inside:
                yield f"{path.relative_to(folder)}: {link}"


def heading(text):
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def broken_texts(root=ROOT):
    """Links, and names of files in code, in the texts of the repository that lead to no file: "text: link"."""
    texts = [root / "README.md", root / "exercises.md", *sorted(root.glob("results/*.md"))]
    texts += [path for path in sorted(root.glob("docs/**/*.md")) if "_build" not in path.parts]
    for path in texts:
        text = path.read_text()
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, place = link.partition("#")
            target = path.parent / file if file else path
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if place and target.is_file() else []
            if not ELSEWHERE.match(link) and (not target.exists() or place and place not in map(heading, headings)):
                yield f"{path.relative_to(root)}: {link}"
        for name in re.findall(rf"(?<![\w/.~-])((?:{KEPT})/[\w./*-]*\w|\w+\.md)", text):
            built = "_build" in name  # only there once the pages are built
            if not built and not list(root.glob(name)) and not list(path.parent.glob(name)):
                yield f"{path.relative_to(root)}: {name}"


def main():
    from sphinx.cmd.build import main as sphinx

    out = HERE / "_build"
    shutil.rmtree(out, ignore_errors=True)  # pages that are not written again would keep old names in their margin
    failed = sphinx(["-W", "--keep-going", "-q", "-b", "html", "-d", str(out / ".doctrees"), str(HERE), str(out)])
    if not failed and (broken := [*broken_texts(), *broken_pages(out)]):
        failed = 1
        print("links that lead nowhere:", *broken, sep="\n", file=sys.stderr)
    if not failed:
        print(f"open {out / 'index.html'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
