"""The directive `passage` of the reading edition: an idea of the paper beside the function that carries it out.

    :::{passage} loss.py:cispo
    :test: tests/test_loss.py:test_eq4_cispo_gradient_is_the_capped_ratio_times_the_advantage
    :exercise: cispo, weights
    :look: which factor is detached

    The idea in our words, with equation and section.
    :::

The function is included from its module by name. Several tests or exercises are separated by commas; one that does not
exist is an error. Formulas become MathML, which browsers draw without any script or network. Where a text names a page
(`docs/own.md`) or a function that has a passage (`loss.py:cispo`), it becomes a link.
"""

import ast
import html
import re
from functools import cache
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from latex2mathml.converter import convert
from sphinx.directives.code import LiteralInclude
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
INCLUDED = {"results/README.md": "results", "exercises.md": "course"} | {  # texts of the repository that are pages here
    f"results/{name}.md": f"measured/{name}" for name in ("fleet", "forecasts")
}


@cache
def defined(file):
    """Dotted names of the functions and classes of a file of the project."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + node.name
                yield from walk(node.body, f"{prefix}{node.name}.")

    return set(walk(ast.parse((ROOT / file).read_text()).body, ""))


@cache
def exercises():
    """Names of the course's exercises, as its checks define them."""
    text = "".join(path.read_text() for path in sorted((ROOT / "course" / "checks").glob("*.py")))
    return set(re.findall(r'\.(?:write|bug|predict|measure)\(\s*name="([\w-]+)"', text))


@cache
def passages():
    """{function: its page} of all passages."""
    pages = sorted((ROOT / "docs").glob("paper/*.md"))
    return {
        where: f"paper/{page.stem}"
        for page in pages
        for where in re.findall(r"^:::\{passage\} (\S+)$", page.read_text(), re.M)
    }


def anchor(where):
    """The id of a passage."""
    return re.sub(r"[:.]", "-", where).lower()


def names(option):
    return option.split(", ") if option else []


class Passage(SphinxDirective):
    """One idea: text on the left, code on the right; below each other on a narrow screen."""

    required_arguments = 1
    has_content = True
    option_spec = {name: directives.unchanged for name in ("test", "exercise", "look", "result")}

    def run(self):
        file, _, name = self.arguments[0].partition(":")
        self.check(file, name)
        text = nodes.container(classes=["passage-text"])
        text += self.parse_content_to_nodes()
        text += self.around(file, name)
        code = nodes.container(classes=["passage-code"])
        code += nodes.caption("", "", nodes.literal(text=f"{file}:{name}"))
        code += self.included(file, name)
        both = nodes.container(classes=["passage"], ids=[anchor(self.arguments[0])])
        both += [text, code]
        return [both]

    def check(self, file, name):
        """An error for what is named and does not exist."""
        if not (ROOT / file).is_file() or name not in defined(file):
            raise self.error(f"{file} defines no {name}")
        for test in names(self.options.get("test")):
            path, _, function = test.partition(":")
            if not (ROOT / path).is_file() or function not in defined(path):
                raise self.error(f"no test {test}")
        for exercise in names(self.options.get("exercise")):
            if exercise not in exercises():
                raise self.error(f"no exercise is called {exercise}")

    def around(self, file, name):
        """The list of what to look for, the test, the exercise and the result."""
        rows = nodes.bullet_list(classes=["passage-around"])
        labels = {"look": "Look for", "test": "Held by", "exercise": "Exercise", "result": "Result"}
        for option, label in labels.items():
            if option in self.options:
                if option in ("test", "exercise"):
                    value = [breakable(name) for name in names(self.options[option])]
                else:
                    value = sum(self.parse_inline(self.options[option]), [])
                rows += nodes.list_item("", nodes.paragraph("", "", nodes.strong(text=f"{label}: "), *value))
        return rows

    def included(self, file, name):
        """The nodes of the function's source."""
        options = {"pyobject": name, "language": "python"} | ({"dedent": 4} if "." in name else {})
        include = LiteralInclude(
            "literalinclude",
            [f"/../{file}"],
            options,
            [],
            self.lineno,
            self.content_offset,
            "",
            self.state,
            self.state_machine,
        )
        return include.run()


def breakable(name):
    """A name in code that may be broken after an underscore or a colon, and is copied without a break."""
    parts = re.sub(r"([_:])", r"\1<wbr>", html.escape(name))
    return nodes.raw("", f'<code class="docutils literal notranslate name">{parts}</code> ', format="html")


def link(app, tree, page):
    """Make links of the names of pages and of functions with a passage that stand in code in a text."""
    for node in list(tree.findall(nodes.literal)):
        name = node.astext()
        at = passages().get(name) or INCLUDED.get(name) or re.sub(r"^docs/(.*)\.md$", r"\1", name)
        if at in app.env.found_docs and at != page and not isinstance(node.parent, (nodes.reference, nodes.caption)):
            uri = app.builder.get_relative_uri(page, at) + (f"#{anchor(name)}" if name in passages() else "")
            node.replace_self(nodes.reference("", "", node.deepcopy(), internal=True, refuri=uri))


def draw(self, node, display):
    """A formula as MathML."""
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    app.add_directive("passage", Passage)
    app.connect("doctree-resolved", link)
    inline = (lambda self, node: draw(self, node, "inline"), None)
    block = (lambda self, node: draw(self, node, "block"), None)
    app.add_node(nodes.math, override=True, html=inline)
    app.add_node(nodes.math_block, override=True, html=block)
    return {"parallel_read_safe": True}
