"""Whether a training of another commit really ran that commit's code, from the files its modules came from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from traceops.core.errors import UsageError
from traceops.launch.base_commit import BaseCommit

_INSTALLED = ("site-packages", "dist-packages")
_SHOWN = 3


def loaded_files(folder: Path) -> set[Path]:
    """What the ranks of one training left in `folder`; see `traceops.capture.settings.IMPORTS_ENV`."""
    return {Path(line) for file in folder.glob("*.txt") for line in file.read_text().splitlines()}


def check_imports(base: BaseCommit, label: str, files: Iterable[Path]) -> list[str]:
    """Warnings about `files`, which the training `label` of the base loaded.

    Raises UsageError if code that differs between the sides came from the working tree or from an installed
    copy: both sides ran the same then.
    """
    outside = [file for file in files if not file.is_relative_to(base.folder)]
    of_tree = {inside: file for file in outside if (inside := base.repository.inside(file)) is not None}
    copies = {inside: file for file in outside if (inside := _in_site_packages(file)) is not None}
    if not of_tree and not copies:
        return []
    differing = base.repository.differing(base.commit)
    if wrong := sorted(differing & set(of_tree)):
        raise UsageError(
            f"{label} imported {_some(wrong)} from the working tree, not from {base.named}: its code is the "
            f"head's. Something puts {base.repository.root} on sys.path; use a path relative to the script"
        )
    ends = {end: file for file in differing for end in _ends(file, base.repository.root)}
    if copied := sorted(inside for inside in copies if inside in ends):
        raise UsageError(
            f"{label} imported {_some(copied)} as installed in {_root(copies[copied[0]], copied[0])}, so both "
            "sides ran the same; install the project with pip install -e, or put its source on PYTHONPATH"
        )
    untracked = sorted(base.repository.untracked() & set(of_tree))
    if not untracked:
        return []
    return [f"{label} imported {_some(untracked)} from the working tree, which git does not track"]


def _in_site_packages(file: Path) -> Path | None:
    """`file` below its site-packages; None for the standard library and everything else."""
    depth = max((n for n, part in enumerate(file.parts) if part in _INSTALLED), default=None)
    return None if depth is None else Path(*file.parts[depth + 1 :])


def _ends(file: Path, root: Path) -> list[Path]:
    """The names under which `file` of a source tree may be installed: from any folder on that is in no package.

    A name alone is a module's only where project files put it: at the top, or in src.
    """
    folders = [*reversed(file.parents)]
    return [
        file.relative_to(folder)
        for folder in folders
        if not (root / folder / "__init__.py").exists() and (folder != file.parent or folder in (Path(), Path("src")))
    ]


def _root(file: Path, inside: Path) -> Path:
    return file.parents[len(inside.parts) - 1]


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(str, paths[:_SHOWN])) + more
