"""Owns what a bug may look like: the closed list of textual flips, and which functions are small enough to carry one.

A flip replaces one text by another on the only line of an excerpt that holds it, so that the ranged
`sed -i 'a,bs/OLD/NEW/'` undoes exactly what was injected. No text of the list holds a character that sed reads specially.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

# kind -> pairs of texts; each pair counts in both directions.
PAIRS: dict[str, list[tuple[str, str]]] = {
    "lt/le": [(" < ", " <= ")],
    "gt/ge": [(" > ", " >= ")],
    "eq/ne": [(" == ", " != ")],
    "add/sub": [(" + ", " - "), (" += ", " -= ")],
    "and/or": [(" and ", " or ")],
    "is/is-not": [(" is None", " is not None"), (" is ", " is not ")],
    "in/not-in": [(" in ", " not in ")],
    "true/false": [(" True", " False"), ("=True", "=False")],
    "zero/one": [(" 0", " 1"), ("0]", "1]"), ("0)", "1)")],
    "min/max": [(" min(", " max(")],
    "any/all": [(" any(", " all(")],
    "break/continue": [(" break", " continue")],
    "if/if-not": [(" if ", " if not "), (" elif ", " elif not ")],
    "while/while-not": [(" while ", " while not ")],
}
MAX_LINES, MAX_CHARS = 14, 520
MIN_FLIPS, MAX_FLIPS = 3, 8
SED_SPECIAL = set("\\/&.*[^$\n")


@dataclass(frozen=True)
class Flip:
    """One possible edit of an excerpt: `old` stands on line `line` (from 0) only and becomes `new`."""

    kind: str
    old: str
    new: str
    line: int


@dataclass(frozen=True)
class Function:
    """A function of a file; `first` and `last` (from 1) bound its excerpt, which leaves a docstring out.

    `whole` starts at the first decorator, as code objects do.
    """

    name: str
    qualname: str
    first: int
    last: int
    lines: tuple[str, ...]
    whole: tuple[int, int]


def directed() -> list[tuple[str, str, str]]:
    out = []
    for kind, pairs in PAIRS.items():
        for one, other in pairs:
            out += [(kind, one, other), (kind, other, one)]
    for _, old, new in out:
        # A "]" that no "[" opens is an ordinary character to sed.
        assert not SED_SPECIAL & set(old) and not SED_SPECIAL & set(new), (old, new)
    return out


DIRECTED = directed()


def _parse(lines: list[str]) -> str | None:
    """The syntax tree of an excerpt as text, or None where it is no Python."""
    text = textwrap.dedent("\n".join(lines))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ast.dump(ast.parse("async def _():\n" + textwrap.indent(text, " ") + "\n"))
    except (SyntaxError, SyntaxWarning, ValueError):
        return None


def _clean(old: str, line: str, at: int) -> bool:
    """False where the match only looks like the thing meant: `1` in `1.5`, ` is ` in ` is not `."""
    after = line[at + len(old) :]
    before = line[:at]
    if old in (" 0", " 1", " True", " False", "=True", "=False", " break", " continue"):
        return not re.match(r"[\w.]", after)
    if old in ("0]", "1]", "0)", "1)"):
        return not re.search(r"[\w.]$", before)
    if old in (" is None", " is not None"):
        return not re.match(r"\w", after)
    if old == " is ":
        return not after.startswith(("not ", "None"))
    if old == " is not ":
        return not after.startswith("None")
    if old in (" if ", " elif ", " while "):
        return not after.startswith("not ")
    if old == " in ":
        return not before.endswith(" not")
    return True


def apply(lines: list[str], flip: Flip) -> list[str]:
    """What `sed 'a,bs/old/new/'` makes of the excerpt."""
    return [line.replace(flip.old, flip.new, 1) for line in lines]


def possible(lines: list[str]) -> list[Flip]:
    """Every flip that an excerpt admits: its text stands on one line, once, and the result is other, valid Python."""
    base = _parse(lines)
    if base is None:
        return []
    found = []
    for kind, old, new in DIRECTED:
        at = [i for i, line in enumerate(lines) if old in line]
        if len(at) != 1 or lines[at[0]].count(old) != 1:
            continue
        line = lines[at[0]]
        if not _clean(old, line, line.index(old)):
            continue
        flip = Flip(kind, old, new, at[0])
        tree = _parse(apply(lines, flip))
        if tree is None or tree == base:
            continue
        found.append(flip)
    return found


def functions(source: str) -> list[Function]:
    """The functions of a file whose excerpts are small enough to be shown to the demo's model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    lines = source.split("\n")
    out: list[Function] = []

    def visit(node: ast.AST, path: tuple[str, ...], inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if not inside:
                    one = _function(child, path, lines)
                    if one:
                        out.append(one)
                visit(child, path + (child.name,), True)
            elif isinstance(child, ast.ClassDef):
                visit(child, path + (child.name,), inside)
            else:
                visit(child, path, inside)

    visit(tree, (), False)
    return out


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, path: tuple[str, ...], lines: list[str]) -> Function | None:
    body, first = node.body, node.lineno
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
        if len(body) == 1:
            return None
        first = body[0].end_lineno + 1
        while first < body[1].lineno and not lines[first - 1].strip():
            first += 1
    last = node.end_lineno
    excerpt = lines[first - 1 : last]
    if not all(line.isascii() and line.isprintable() for line in excerpt):
        return None
    if not 2 <= len(excerpt) <= MAX_LINES or sum(len(x) + 1 for x in excerpt) > MAX_CHARS:
        return None
    return Function(node.name, ".".join(path + (node.name,)), first, last, tuple(excerpt), (min([node.lineno] + [d.lineno for d in node.decorator_list]), last))


def mutants(function: Function) -> list[tuple[Flip, list[str], list[Flip]]]:
    """(the repair, the buggy excerpt, every flip possible in it) for each bug that can be injected and undone."""
    out = []
    lines = list(function.lines)
    for bug in possible(lines):
        buggy = apply(lines, bug)
        choices = possible(buggy)
        repair = [f for f in choices if f.old == bug.new and f.new == bug.old and f.line == bug.line]
        if len(repair) != 1 or not MIN_FLIPS <= len(choices) <= MAX_FLIPS:
            continue
        if apply(buggy, repair[0]) != lines:
            continue
        out.append((repair[0], buggy, choices))
    return out
