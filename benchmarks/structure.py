"""How the code is built, counted from its syntax trees: packages, imports, circles, names, reads by string key.

    python -m benchmarks.structure                  the work tree
    python -m benchmarks.structure --base 05a00b9   beside another commit
    python -m benchmarks.structure --list upward    what is behind one of the numbers

The layers are those of import-linter's contract in pyproject.toml. A commit from before a move of files is held against
the same layers: git's renames say where each of its modules stands today.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = "traceops"
READERS = ("render", "report", "compare", "pipeline", "timeline", "perfetto")
"""Packages that read reports, under the names of today and of before."""
OTHER_FILES = (
    "traceops.pipeline.run_info", "traceops.pipeline.observed_run", "traceops.pipeline.observed_run",
    "traceops.pipeline.one_run", "traceops.compare.config", "traceops.render.svg",
)  # fmt: skip
"""Modules in them that read run.json, settings and plotly's figures, no report."""
DOCUMENTS = re.compile(r"(report|hang|compare|doctor)\.schema\.json")
SMALL = 60

LATE: dict[str, str] = dict(
    line.split(" = ", 1) for line in Path(__file__).with_name("late_imports.txt").read_text().splitlines()
)
"""Modules that import inside functions, and what that spares: a test holds that there are no others."""


@dataclass(frozen=True)
class Import:
    """One import of ours by ours: from which module, of which, at which line, in a function or not."""

    source: str
    target: str
    line: int
    in_function: bool


@dataclass(frozen=True)
class Tree:
    """The files of one commit, or of the work tree: text by path."""

    files: Mapping[str, str]
    placed: Mapping[str, str]
    """By module: the package in which git's renames find it today, where it has another name here."""

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        return {
            module_name(path): ast.parse(text)
            for path, text in self.files.items()
            if path.startswith(PACKAGE + "/") and path.endswith(".py")
        }

    @cached_property
    def imports(self) -> list[Import]:
        return [found for name in self.modules for found in self._imports_of(name)]

    def _imports_of(self, name: str) -> Iterator[Import]:
        for node, in_function in walk(self.modules[name]):
            if isinstance(node, ast.Import):
                wanted = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted = [(node.module, alias.name) for alias in node.names]
            else:
                continue
            targets = {self._module(module, part) for module, part in wanted} - {None, name}
            for target in sorted(filter(None, targets)):
                yield Import(name, target, node.lineno, in_function)

    def _module(self, module: str, part: str) -> str | None:
        """The module of ours that ``from module import part`` needs."""
        if module.split(".")[0] != PACKAGE:
            return None
        inner = f"{module}.{part}"
        return inner if inner in self.modules else module if module in self.modules else None


def walk(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, and whether each is inside a function."""
    for child in ast.iter_child_nodes(node):
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, inside
        yield from walk(child, inside)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package(module: str) -> str:
    """The part of traceops in which a module is: `traceops.render.cells` is in `render`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


# What is counted. Each of these returns one line of text for each thing it counts.


def python_lines(tree: Tree) -> list[str]:
    return [
        line
        for path, text in tree.files.items()
        if path.startswith(PACKAGE + "/") and path.endswith(".py")
        for line in text.splitlines()
    ]


def lines_by_package(tree: Tree) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for path, text in tree.files.items():
        if path.startswith(PACKAGE + "/") and path.endswith(".py"):
            found[package(module_name(path))] += len(text.splitlines())
    return dict(sorted(found.items()))


def top_level(tree: Tree) -> list[str]:
    """Packages and modules that lie directly in traceops."""
    return sorted({package(name) for name in tree.modules} - {PACKAGE})


def modules(tree: Tree) -> list[str]:
    return sorted(tree.modules)


def small(tree: Tree) -> list[str]:
    """Modules of fewer lines than a room worth entering has."""
    lines = {module_name(path): len(text.splitlines()) for path, text in tree.files.items() if path.endswith(".py")}
    return sorted(name for name in tree.modules if 1 < lines[name] < SMALL)


def with_one_user(tree: Tree) -> list[str]:
    """Modules that one other module imports, and nothing else does."""
    users: dict[str, set[str]] = defaultdict(set)
    for found in tree.imports:
        users[found.target].add(found.source)
    return sorted(f"{name}: {next(iter(users[name]))}" for name in tree.modules if len(users[name]) == 1)


def functions(tree: Tree) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, module in tree.modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{node.name}", node


def complex_functions(tree: Tree) -> list[str]:
    """Functions with more than 20 paths by McCabe's count: one, and one more for each decision."""
    return sorted(f"{name}: {paths}" for name, node in functions(tree) if (paths := 1 + decisions(node)) > 20)


def decisions(node: ast.AST) -> int:
    found = 0
    for inner in ast.walk(node):
        if isinstance(inner, ast.BoolOp):
            found += len(inner.values) - 1
        elif isinstance(inner, ast.comprehension):
            found += 1 + len(inner.ifs)
        else:
            kinds = ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.Assert | ast.match_case
            found += isinstance(inner, kinds)
    return found


def mixed(tree: Tree) -> list[str]:
    """Functions that decide and word: a condition, and text of four words or more besides docstrings and errors."""
    return sorted(name for name, node in functions(tree) if decisions(node) and any(sentences(node)))


def sentences(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    raised = {inner for one in ast.walk(node) if isinstance(one, ast.Raise) for inner in ast.walk(one)}
    doc = node.body[0] if isinstance(node.body[0], ast.Expr) else None
    for inner in ast.walk(node):
        if inner in raised or (doc is not None and inner is doc.value):
            continue
        parts = inner.values if isinstance(inner, ast.JoinedStr) else [inner]
        text = " ".join(str(part.value) for part in parts if isinstance(part, ast.Constant) and type(part.value) is str)
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 4 and " " in text.strip():
            yield text


def between_families(tree: Tree) -> list[str]:
    """Imports of one family of rules by another: families share what lies in rules/shared.py and below.

    Above them is what works on the verdicts of all: the registry, and what explains, lists, or adds lines of code.
    """
    below, above = {"inputs", "shared"}, {"registry", "explained", "coverage", "docs", "diagnosis", "named"}
    shared = below | above | {"machine", "fabric"}

    def family(module: str) -> str:
        return re.split(r"[._]", module.removeprefix("traceops.rules."))[0]

    return sorted(
        f"{i.source} imports {i.target}"
        for i in tree.imports
        if i.source.startswith("traceops.rules.")
        and i.target.startswith("traceops.rules.")
        and family(i.source) != family(i.target)
        and not {family(i.source), family(i.target)} & shared
    )


def arrows(tree: Tree) -> list[str]:
    """Which package or top module imports which: an arrow of the picture each."""
    found = {(package(i.source), package(i.target)) for i in tree.imports}
    return sorted(f"{a} -> {b}" for a, b in found if a != b)


def each_other(tree: Tree) -> list[str]:
    """Pairs of packages that import each other."""
    found = {(package(i.source), package(i.target)) for i in tree.imports}
    return sorted(f"{a} <-> {b}" for a, b in found if a < b and (b, a) in found)


def upward(tree: Tree) -> list[str]:
    """Imports of a module by a module that stands below it."""
    level = {name: at for at, names in enumerate(layers()) for name in names}
    return sorted(
        f"{i.source}:{i.line} imports {i.target}"
        for i in tree.imports
        if (above := level.get(tree.placed.get(i.target, package(i.target)))) is not None
        and (below := level.get(tree.placed.get(i.source, package(i.source)))) is not None
        and above < below
    )


def unplaced(tree: Tree) -> list[str]:
    """Modules that are in none of the layers, and in no count of imports that point up."""
    known = {name for names in layers() for name in names}
    return sorted(name for name in tree.modules if tree.placed.get(name, package(name)) not in known)


def circles(tree: Tree) -> list[str]:
    """Modules that import each other, directly or over others; imports in functions and for types count."""
    graph: dict[str, set[str]] = defaultdict(set)
    for found in tree.imports:
        graph[found.source].add(found.target)
    return sorted(" ".join(sorted(group)) for group in strongly_connected(graph) if len(group) > 1)


def in_functions(tree: Tree) -> list[str]:
    """Import statements inside functions, of ours and of others' modules."""
    return sorted(
        f"{name}:{node.lineno}"
        for name, module in tree.modules.items()
        for node, in_function in walk(module)
        if in_function and isinstance(node, ast.Import | ast.ImportFrom)
    )


def names_twice(tree: Tree) -> list[str]:
    """Names that more than one class has."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, module in tree.modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    return sorted(f"{name}: {', '.join(where)}" for name, where in found.items() if len(where) > 1)


def key_reads(tree: Tree) -> list[str]:
    """Reads of a property of our documents by its name as text, where reports are read (`READERS`).

    ``x["step_ms"]`` and ``x.get("step_ms")`` count, where a schema of report.json, hang.json, compare.json or
    doctor.json has a property of that name. Where it is written to, it does not count.
    """
    properties = {
        name for path, text in tree.files.items() if DOCUMENTS.search(path) for name in property_names(json.loads(text))
    }
    return sorted(
        f'{name}:{node.lineno} "{key}"'
        for name, module in tree.modules.items()
        if package(name) in READERS and not is_other(name)
        for node in ast.walk(module)
        if isinstance(node, ast.expr) and (key := read_key(node)) in properties
    )


def is_other(name: str) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in OTHER_FILES)


def read_key(node: ast.expr) -> str | None:
    """The text by which a subscript or `.get` reads."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        key = node.args[0]
    else:
        return None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def property_names(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(found := schema.get("properties"), dict):
            yield from found
        for value in schema.values():
            yield from property_names(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from property_names(value)


def untyped_lines(tree: Tree) -> list[str]:
    """Lines that say ``dict[str, Any]`` or ``Mapping[str, Any]``."""
    return sorted(
        f"{module_name(path)}:{at}"
        for path, text in tree.files.items()
        if path.startswith(PACKAGE + "/") and path.endswith(".py")
        for at, line in enumerate(text.splitlines(), 1)
        if "dict[str, Any]" in line or "Mapping[str, Any]" in line
    )


COUNTS = {
    "lines of Python": python_lines,
    "packages and modules at the top": top_level,
    "modules": modules,
    f"modules under {SMALL} lines": small,
    "modules with one user": with_one_user,
    "functions with more than 20 paths": complex_functions,
    "functions that decide and word": mixed,
    "imports between families of rules": between_families,
    "arrows between them": arrows,
    "upward": upward,
    "modules outside the layers": unplaced,
    "circles": circles,
    "pairs that import each other": each_other,
    "imports in functions": in_functions,
    "class names given twice": names_twice,
    "reads by string key": key_reads,
    "lines with dict[str, Any]": untyped_lines,
}


def strongly_connected(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Tarjan's algorithm: groups in which every node reaches every other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(stack[at:])
            del stack[at:]

    for node in list(graph):
        if node not in index:
            visit(node)
    return groups


def layers() -> list[set[str]]:
    """Packages from the top down, those of one layer together, from the contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    drawn = next(contract for contract in contracts if contract["type"] == "layers")
    return [set(re.findall(r"\w+", layer)) for layer in drawn["layers"]]


def work_tree() -> Tree:
    names = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    paths = [name for name in names if name.endswith((".py", ".schema.json")) and (ROOT / name).is_file()]
    return Tree({name: (ROOT / name).read_text(encoding="utf-8") for name in paths}, {})


def commit_tree(commit: str) -> Tree:
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    wanted = [name for name in names if name.endswith((".py", ".schema.json"))]
    asked = "".join(f"{commit}:{name}\n" for name in wanted)
    out = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=ROOT, input=asked.encode(), stdout=subprocess.PIPE, check=True
    ).stdout
    files, at = {}, 0
    for name in wanted:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        files[name] = out[end + 1 : end + 1 + size].decode()
        at = end + 2 + size
    return Tree(files, renamed_since(commit))


def renamed_since(commit: str) -> dict[str, str]:
    """The package of today of each module that the work tree has under another name."""
    found: dict[str, str] = {}
    log = git(
        "log", "--reverse", "--find-renames=50%", "--diff-filter=R", "--name-status", "--format=", f"{commit}..HEAD"
    )  # fmt: skip
    for line in log.splitlines():
        _, old, new = line.split("\t")
        if old.endswith(".py") and old.startswith(PACKAGE + "/"):
            found[new] = found.pop(old, old)
    placed = {module_name(old): package(module_name(new)) for new, old in found.items()}
    old_names = git("ls-tree", "-r", "--name-only", commit, PACKAGE).splitlines()
    if not any(name.startswith(f"{PACKAGE}/render/") for name in old_names):  # `report` was what renders, then
        renderers = (module_name(name) for name in old_names if name.startswith(f"{PACKAGE}/report/"))
        placed = dict.fromkeys(renderers, "render") | placed
    return placed


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


def table(trees: Mapping[str, Tree]) -> str:
    """The counts as a Markdown table, a column a tree."""
    rows = [[name, *(f"{len(count(tree)):,}" for tree in trees.values())] for name, count in COUNTS.items()]
    return "\n".join(markdown(["", *trees], rows))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = [("-" * (width - 1)) + ("-" if at == 0 else ":") for at, width in enumerate(widths)]
    for row in (head, rule, *rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="GITREF", help="count another commit too")
    parser.add_argument("--list", metavar="NAME", choices=COUNTS, help="what is behind a number")
    parser.add_argument("--packages", action="store_true", help="lines of each package too")
    args = parser.parse_args()
    trees = ({args.base: commit_tree(args.base)} if args.base else {}) | {"now": work_tree()}
    if args.list:
        for name, tree in trees.items():
            print(f"{args.list}, {name}:", *COUNTS[args.list](tree), sep="\n  ")
        return
    print(table(trees))
    if args.packages:
        for name, tree in trees.items():
            print(f"\n{name}: " + ", ".join(f"{part} {lines:,}" for part, lines in lines_by_package(tree).items()))


if __name__ == "__main__":
    main()
