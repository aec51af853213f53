"""How a training of the working tree is started from another commit: its script, its imports, its arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.capture.manifest import GitState
from traceops.core.errors import UsageError
from traceops.launch.plan import Checkout, Plan
from traceops.launch.repository import Repository, short

_NOT_A_PATH = ("", ".", "..")


class BaseCommit(Struct, frozen=True):
    """The commit that `ref` named when the series began, and where it will lie.

    cwd: working folder of the head, absolute. folder: a temporary one, for everything of the base.
    """

    repository: Repository
    ref: str
    commit: str
    cwd: Path
    folder: Path

    @property
    def tree(self) -> Path:
        """The worktree, called like the repository's own folder."""
        return self.folder / "base" / self.repository.root.name

    @property
    def links(self) -> Path:
        """Where links to packages go that an editable install finds one by one."""
        return self.folder / "links"

    def place(self, path: Path) -> Path | None:
        """Where `path` (absolute) lies in the worktree.

        None for what is not the repository's: outside of it, or in it and ignored (a .venv, a build).
        """
        inside = self.repository.inside(path)
        if inside is None or not (self.repository.in_commit(self.commit, inside) or self.repository.in_index(inside)):
            return None
        return self.tree / inside

    @property
    def named(self) -> str:
        """What to call it: ``main at 1a2b3c4d5e``."""
        return self.ref if self.commit.startswith(self.ref) else f"{self.ref} at {short(self.commit)}"


def check(base: BaseCommit, trains: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise UsageError if the commit lacks the working folder, or the script or module that is trained."""
    repository = base.repository
    where = repository.inside(base.cwd)
    if where is None or not repository.in_commit(base.commit, where):
        raise UsageError(f"--against {base.ref}: it has no folder {where}; start in a folder that both sides have")
    if trains[0] == "-m":
        _check_module(base, trains[1], environ)
        return
    script = repository.inside(base.cwd / trains[0])
    if script is not None and not repository.in_commit(base.commit, script) and not repository.ignores(script):
        raise UsageError(
            f"--against {base.ref}: it has no {script}; commit it there, or keep the script outside the "
            "repository, so that both sides run the same"
        )


def _check_module(base: BaseCommit, module: str, environ: Mapping[str, str]) -> None:
    """A module that the repository does not have either is an installed one, the same on both sides."""
    repository = base.repository
    first, *rest = module.split(".")
    roots = [base.cwd, *_python_path(base.cwd, environ), *site_paths(environ)]
    stems = [root.joinpath(first, *rest) for root in roots if base.place(root) is not None]
    if (package := editable_packages().get(first)) is not None:
        stems.append(package.joinpath(*rest))
    files = [file for stem in stems for file in (stem.with_name(stem.name + ".py"), stem / "__main__.py")]
    own = [inside for file in files if (inside := repository.inside(file)) is not None]
    here = any((repository.root / path).exists() for path in own)
    if here and not repository.in_commit(base.commit, *own):
        raise UsageError(f"--against {base.ref}: it has no module {module}; compare with a commit that has it")


def base_plan(plan: Plan, base: BaseCommit, environ: Mapping[str, str]) -> Plan:
    """`plan`, which is of the head, to be run in the worktree of `base`."""
    trains = list(plan.trains)
    if trains[0] != "-m":
        script = base.cwd / trains[0]
        placed = base.place(script)
        if Path(trains[0]).is_absolute() or placed is None:
            trains[0] = str(placed or script)
    assigned = plan.assignments(environ)
    path = python_path(base, {**environ, **assigned})
    where = base.repository.inside(base.cwd)
    assert where is not None
    git: GitState = {"commit": base.commit, "branch": base.repository.branch(base.ref), "dirty": False}
    return replace(
        plan,
        trains=trains,
        extra_env={**plan.extra_env, "PYTHONPATH": os.pathsep.join(path)} if path else plan.extra_env,
        checkout=Checkout(base.tree / where, git, plan.trains),
    )


def python_path(base: BaseCommit, environ: Mapping[str, str]) -> list[str]:
    """PYTHONPATH of the base: the head's, and what editable installs add, moved into the worktree.

    It comes before site-packages, whose editable installs lead to the working tree.
    """
    own = [str(base.place(entry) or entry) for entry in _python_path(base.cwd, environ)]
    linked = [str(base.links)] if editable_links(base) else []
    moved = [str(placed) for entry in site_paths(environ) if (placed := base.place(entry)) is not None]
    return list(dict.fromkeys([*own, *linked, *moved]))


def editable_links(base: BaseCommit) -> dict[Path, Path]:
    """Link -> what it leads to in the worktree, for the packages of `editable_packages`.

    Their parent folder on PYTHONPATH would do as well, if it did not hold other names too: a tests package,
    say, that hides an installed one.
    """
    found = {}
    packages = editable_packages()
    for name, path in packages.items():
        parts = name.split(".")
        inside_another = any(".".join(parts[:n]) in packages for n in range(1, len(parts)))
        source = path if path.is_dir() else path.with_suffix(".py")
        placed = base.place(source)
        if placed is not None and not inside_another:
            link = base.links.joinpath(*parts)
            found[link if path.is_dir() else link.with_suffix(".py")] = placed
    return found


def editable_packages() -> dict[str, Path]:
    """Name -> folder (or file, less its .py) of what setuptools' editable installs find by name."""
    found: dict[str, Path] = {}
    for name, module in sys.modules.items():
        mapping: Any = vars(module).get("MAPPING") if name.startswith("__editable___") else None
        if isinstance(mapping, dict):
            found.update({str(package): Path(path) for package, path in mapping.items()})
    return found


def site_paths(environ: Mapping[str, str]) -> list[Path]:
    """Folders on this Python's path that the ranks have too: all but the first, where this program lies."""
    given = {str(path) for path in _python_path(Path.cwd(), environ)}
    own = 0 if getattr(sys.flags, "safe_path", False) else 1
    return [Path(entry) for entry in sys.path[own:] if entry and entry not in given]


def argument_warnings(base: BaseCommit, trains: Sequence[str]) -> Iterator[str]:
    """What the script's arguments name that will not be on both sides as it looks."""
    for value in _values(trains[2:] if trains[0] == "-m" else trains[1:]):
        path = Path(value)
        inside = base.repository.inside(base.cwd / path)
        if value in _NOT_A_PATH or inside is None or not _exists(base.cwd / path):
            continue
        held = base.repository.in_commit(base.commit, inside)
        if path.is_absolute() and held and inside != Path():
            yield f"{value}: both sides use that of the working tree; a relative path would be each side's own"
        elif not path.is_absolute() and not held:
            yield f"{value} is not in {base.named}, so the base will not find it; an absolute path serves both"


def _values(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value and not value.startswith("-"):
            yield value


def _python_path(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    return [cwd / entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a null byte: no path
        return False
