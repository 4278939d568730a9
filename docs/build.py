"""The pages of docs/: their code, their links, and the web pages made of them (docs/_build/index.html).

    pip install -e '.[docs]' && python docs/build.py      builds the web pages
    python docs/build.py --fill                           writes the code into docs/paper/*.md

A heading that names a function, such as `loss.py:cispo`, is followed by a block of Python. `--fill` writes the function
into that block. A test compares the two, so that a page cannot differ from the code. A link that leads nowhere is an
error, in the texts and in the web pages.

Test: pytest tests/test_docs.py
"""

import ast
import re
import shutil
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ELSEWHERE = re.compile(r"[a-z]+:|//")  # https:, mailto:, data:
KEPT = "docs|results|figures|tests|base|plumbing|verify|lab|course"  # folders whose files texts name
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
PASSAGE = re.compile(
    r"(^##+ `(\w+\.py:\S+)`$.*?^```python\n).*?(^```$)", re.M | re.S
)  # up to its code; its name; the end
FIRST = '<meta http-equiv="refresh" content="0; url=docs/README.html"><a href="docs/README.html">The pages</a>\n'


# ---- Code ----


def code(where):
    """The source of "file.py:name": a function, a method, or all statements that assign to a name."""
    file, _, name = where.partition(":")
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    body = ast.parse(text).body
    for part in name.split("."):
        defines = re.compile(rf"\s*(def |class )?{part}\b")
        defining = [node for node in body if defines.match(lines[node.lineno - 1])]
        if not defining:
            sys.exit(f"{file} defines no {name}: rename the heading in docs/paper/")
        body = getattr(defining[0], "body", [])
    decorators = getattr(defining[0], "decorator_list", [])
    first = min(node.lineno for node in [defining[0], *decorators])
    return textwrap.dedent("\n".join(lines[first - 1 : defining[-1].end_lineno])) + "\n"


def filled(text):
    """The text of a page with the code of today."""
    return PASSAGE.sub(lambda passage: passage[1] + code(passage[2]) + passage[3], text)


# ---- Links ----


class Page(HTMLParser):
    """The targets of a built page: `ids` that a link may end in, and `links` to elsewhere in the pages."""

    def __init__(self, text):
        super().__init__()
        self.ids = {""}
        self.links = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = {name: value for name, value in attributes if value}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.links += [values[name] for name in ("href", "src") if name in values and not ELSEWHERE.match(values[name])]


def broken_pages(folder):
    """Links in the built pages of a folder that lead to no file or to no place in it: "page: link"."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
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
    texts = [*root.glob("*.md"), *root.glob("results/*.md"), *root.glob("docs/**/*.md")]
    for path in sorted(path for path in texts if "_build" not in path.parts):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
            file, _, place = link.partition("#")
            target = path.parent / file if file else path
            headings = (
                re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M) if place and target.is_file() else []
            )
            if not ELSEWHERE.match(link) and (not target.exists() or place and place not in map(heading, headings)):
                yield f"{path.relative_to(root)}: {link}"
        for name in re.findall(rf"(?<![\w/.~-])((?:{KEPT})/[\w./*-]*\w|\w+\.md)", text):
            built = "_build" in name  # only there once the pages are built
            if not built and not list(root.glob(name)) and not list(path.parent.glob(name)):
                yield f"{path.relative_to(root)}: {name}"


def mend(out):
    """In the built pages have links to Python open its source, which Sphinx has downloaded, and long names break."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    for path in out.glob("_downloads/*/*.py"):
        page = HtmlFormatter(full=True, linenos="table", style="friendly", title=path.name)
        source = highlight(path.read_text(encoding="utf-8"), PythonLexer(), page)
        path.with_name(f"{path.name}.html").write_text(source, encoding="utf-8")
    for path in out.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r' download="" (href="[^"]*/_downloads/[^"]*\.py)"', r' \1.html"', text)
        text = re.sub(r'(?<=<span class="pre">)\w{30,}', lambda name: name[0].replace("_", "_<wbr>"), text)
        path.write_text(text, encoding="utf-8")


def build():
    """Build the web pages. Returns an exit status."""
    from sphinx.cmd.build import main as sphinx

    out = HERE / "_build"
    shutil.rmtree(out, ignore_errors=True)  # pages that are not written again would keep old names in their margin
    strict = ["-W", "--keep-going", "-q"]
    if sphinx([*strict, "-c", str(HERE), "-d", str(out / ".doctrees"), str(ROOT), str(out)]):
        return 1
    mend(out)
    (out / "index.html").write_text(FIRST, encoding="utf-8")
    if broken := [*broken_texts(), *broken_pages(out)]:
        print("links that lead nowhere:", *broken, sep="\n", file=sys.stderr)
        return 1
    print(f"open {out / 'index.html'}")
    return 0


def main():
    if sys.argv[1:] == ["--fill"]:
        for page in HERE.glob("paper/*.md"):
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.exit(build())


if __name__ == "__main__":
    main()
