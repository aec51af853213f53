"""Trainings of a commit and of the working tree in turn, each with its own code: checkout, script and imports."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.capture.environment import git_state
from traceops.capture.manifest import SCHEMA_VERSION, GitState, read_ranks, write_json
from traceops.capture.settings import IMPORTS_ENV
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.text import meant
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.plan import Checkout, Plan
from traceops.launch.session import launch
from traceops.launch.signals import held_signals

# Set inside git's own hooks, where they would point every command at the repository and index of the hook.
_LOCAL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
_text = Wording("launch", "against")
_COMMIT_DIGITS = 10


def short(commit: str) -> str:
    """The first digits of a commit, for people."""
    return commit[:_COMMIT_DIGITS]


class Repository(Struct, frozen=True):
    """A repository with a work tree; root: its top folder, without links."""

    root: Path

    def git(self, *arguments: str) -> bytes | None:
        """Output of ``git ARGUMENTS`` in the top folder, None if it failed."""
        done = run_git(self.root, *arguments)
        return done.stdout if done.returncode == 0 else None

    def commit(self, ref: str) -> str:
        """The commit that `ref` names. Raises UsageError if there is none."""
        known = "rev-parse", "--verify", "--quiet"
        found = None if ref.startswith("-") else self.git(*known, f"{ref}^{{commit}}")
        if found:
            return found.decode().strip()
        remote = self.git(*known, f"refs/remotes/origin/{ref}")
        branches = (self.git("branch", "--all", "--format=%(refname:short)") or b"").decode().split()
        what = f"; use origin/{ref}" if remote else meant(ref, branches)
        raise UsageError(_text("no_commit", ref=ref, root=str(self.root), what=what))

    def branch(self, ref: str) -> str | None:
        """The branch that `ref` names, without its remote; None for a tag, a commit or ``HEAD~3``."""
        full = (self.git("rev-parse", "--symbolic-full-name", ref) or b"").decode().strip()
        if full.startswith("refs/heads/"):
            return full.removeprefix("refs/heads/")
        if full.startswith("refs/remotes/"):
            return full.removeprefix("refs/remotes/").partition("/")[2] or None
        return None

    def inside(self, path: Path) -> Path | None:
        """`path` (absolute) from the top folder, as it is spelled or else with links resolved; None elsewhere."""
        for spelled in (Path(os.path.normpath(path)), path.resolve()):
            if spelled.is_relative_to(self.root):
                return spelled.relative_to(self.root)
        return None

    def in_commit(self, commit: str, *paths: Path) -> bool:
        """Whether `commit` holds any of `paths` (from the top folder), files or folders."""
        if Path() in paths:
            return True
        names = [str(path) for path in paths]
        return bool(names) and bool(self.git("ls-tree", "--full-tree", "-z", commit, "--", *names))

    def in_index(self, path: Path) -> bool:
        """Whether git tracks `path` (from the top folder) or anything in it, in the working tree."""
        return bool(self.git("--literal-pathspecs", "ls-files", "-z", "--", str(path)))

    def ignores(self, path: Path) -> bool:
        """Whether a .gitignore leaves `path` (from the top folder) out."""
        return self.git("check-ignore", "--quiet", "--", str(path)) is not None

    def differing(self, commit: str) -> set[Path]:
        """Tracked files of the working tree that are not as in `commit`, on either side, from the top folder."""
        return _paths(self.git("diff", "--no-ext-diff", "--no-renames", "--name-only", "-z", commit))

    def untracked(self) -> set[Path]:
        """Files that git neither tracks nor ignores, from the top folder."""
        return _paths(self.git("ls-files", "--others", "--exclude-standard", "-z"))

    def fingerprint(self) -> str:
        """A hash that changes when tracked files do, or the commit under them."""
        changes = self.git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "HEAD")
        return hashlib.sha256((self.git("rev-parse", "HEAD") or b"") + (changes or b"")).hexdigest()


def find_repository(folder: Path) -> Repository:
    """The repository around `folder`. Raises UsageError if there is none, or no git."""
    try:
        done = run_git(folder, "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise UsageError(_text("no_git")) from None
    if done.returncode == 0:
        return Repository(Path(os.fsdecode(done.stdout.rstrip(b"\n"))).resolve())
    why = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ") or "git failed"
    raise UsageError(_text("no_repository", folder=str(folder), why=why))


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`, out of reach of a Ctrl-C. Raises FileNotFoundError where there is no git."""
    env = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, env=env, capture_output=True, check=False, start_new_session=True)


def _paths(listing: bytes | None) -> set[Path]:
    return {Path(os.fsdecode(name)) for name in (listing or b"").split(b"\0") if name}


# A post-checkout hook is for people who check something out, and may be slow.
_WITHOUT_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


def add_command(commit: str, tree: Path) -> list[str]:
    """git's arguments that check `commit` out into `tree`."""
    return [*_WITHOUT_HOOKS, "worktree", "add", "--quiet", "--detach", str(tree), commit]


def remove_command(tree: Path) -> list[str]:
    """git's arguments that remove `tree` with whatever the training left in it."""
    return ["worktree", "remove", "--force", str(tree)]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder, without links in its path; gone after the block, whatever it holds by then."""
    folder = Path(tempfile.mkdtemp(prefix="traceops-base-")).resolve()
    try:
        yield folder
    finally:
        with held_signals():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def checked_out(repository: Repository, commit: str, tree: Path) -> Iterator[None]:
    """`commit` in `tree`, a folder to be made, inside the block. Raises UsageError if git cannot check it out."""
    try:
        with held_signals() as received:  # half a worktree could not be removed
            done = run_git(repository.root, *add_command(commit, tree))
        if received:
            signal.raise_signal(received[0])
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip() or "git failed"
            raise UsageError(_text("not_checked_out", commit=short(commit), tree=str(tree), why=why))
        yield
    finally:
        with held_signals():
            if run_git(repository.root, *remove_command(tree)).returncode:
                shutil.rmtree(tree, ignore_errors=True)
                run_git(repository.root, "worktree", "prune")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, and a terminal that goes away, leave the block through its ``finally``, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def hang_up(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # which a launch in progress knows how to end on

    handlers = {signal.SIGTERM: leave, signal.SIGHUP: hang_up}
    # nohup and similar programs ignore a signal on purpose.
    ours = [number for number in handlers if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, handlers[number]) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_INSTALLED = ("site-packages", "dist-packages")
_SHOWN = 3


def check_imports(base: BaseCommit, label: str, files: Iterable[Path]) -> list[str]:
    """Warnings about `files`, which the training `label` of the base loaded. Raises UsageError if code that differs
    between the sides came from the working tree or from an installed copy: both sides ran the same then."""
    outside = [file for file in files if not file.is_relative_to(base.folder)]
    of_tree = {inside for file in outside if (inside := base.repository.inside(file)) is not None}
    copies = {inside: file for file in outside if (inside := _in_site_packages(file)) is not None}
    if not of_tree and not copies:
        return []
    differing, root = base.repository.differing(base.commit), base.repository.root
    if wrong := sorted(differing & of_tree):
        raise UsageError(_text("code_of_head", label=label, files=_some(wrong), base=base.named, root=str(root)))
    ends = {end for file in differing for end in _ends(file, root)}
    if copied := sorted(copies.keys() & ends):
        site_packages = copies[copied[0]].parents[len(copied[0].parts) - 1]
        raise UsageError(_text("code_installed", label=label, files=_some(copied), root=str(site_packages)))
    untracked = sorted(base.repository.untracked() & of_tree)
    return [_text("untracked", label=label, files=_some(untracked))] if untracked else []


def _in_site_packages(file: Path) -> Path | None:
    """`file` below its site-packages; None for the standard library and everything else."""
    depth = max((n for n, part in enumerate(file.parts) if part in _INSTALLED), default=None)
    return None if depth is None else Path(*file.parts[depth + 1 :])


def _ends(file: Path, root: Path) -> list[Path]:
    """The names under which `file` of a source tree may be installed: from any folder on that is in no package. A name
    alone is a module's only where project files put it: at the top, or in src."""
    folders = [*reversed(file.parents)]
    return [
        file.relative_to(folder)
        for folder in folders
        if not (root / folder / "__init__.py").exists() and (folder != file.parent or folder in (Path(), Path("src")))
    ]


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(str, paths[:_SHOWN])) + more


_NOT_A_PATH = ("", ".", "..")


class BaseCommit(Struct, frozen=True):
    """The commit that `ref` named when the series began, and where it will lie. cwd: working folder of the head,
    absolute. folder: a temporary one, for everything of the base."""

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
        """Where `path` (absolute) lies in the worktree. None for what is not the repository's: outside of it, or in it
        and ignored (a .venv, a build)."""
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
    if (where := repository.inside(base.cwd)) is None or not repository.in_commit(base.commit, where):
        raise UsageError(_text("no_folder", ref=base.ref, folder=str(where)))
    if trains[0] != "-m":
        script = repository.inside(base.cwd / trains[0])
        if script is not None and not repository.in_commit(base.commit, script) and not repository.ignores(script):
            raise UsageError(_text("no_script", ref=base.ref, script=str(script)))
        return
    # A module that the repository does not have either is an installed one, the same on both sides.
    first, *rest = trains[1].split(".")
    roots = [base.cwd, *_python_path(base.cwd, environ), *site_paths(environ)]
    stems = [root.joinpath(first, *rest) for root in roots if base.place(root) is not None]
    if (package := editable_packages().get(first)) is not None:
        stems.append(package.joinpath(*rest))
    files = [file for stem in stems for file in (stem.with_name(stem.name + ".py"), stem / "__main__.py")]
    own = [inside for file in files if (inside := repository.inside(file)) is not None]
    here = any((repository.root / path).exists() for path in own)
    if here and not repository.in_commit(base.commit, *own):
        raise UsageError(_text("no_module", ref=base.ref, module=trains[1]))


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
    """PYTHONPATH of the base: the head's, and what editable installs add, moved into the worktree. It comes before
    site-packages, whose editable installs lead to the working tree."""
    own = [str(base.place(entry) or entry) for entry in _python_path(base.cwd, environ)]
    linked = [str(base.links)] if editable_links(base) else []
    moved = [str(placed) for entry in site_paths(environ) if (placed := base.place(entry)) is not None]
    return list(dict.fromkeys([*own, *linked, *moved]))


def editable_links(base: BaseCommit) -> dict[Path, Path]:
    """Link -> what it leads to in the worktree, for the packages of `editable_packages`. Their parent folder on
    PYTHONPATH would do as well, if it did not hold other names too: a tests package, say, that hides an installed
    one."""
    found = {}
    packages = editable_packages()
    for name, path in packages.items():
        parts = name.split(".")
        inside_another = any(".".join(parts[:n]) in packages for n in range(1, len(parts)))
        source = path if path.is_dir() else path.with_suffix(".py")
        if (placed := base.place(source)) is not None and not inside_another:
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
    for word in trains[2 if trains[0] == "-m" else 1 :]:
        value = word.partition("=")[2] if word.startswith("-") else word
        path = Path(value)
        inside = None if value.startswith("-") else base.repository.inside(base.cwd / path)
        if value in _NOT_A_PATH or inside is None or not _exists(base.cwd / path):
            continue
        held = base.repository.in_commit(base.commit, inside)
        if path.is_absolute() and held and inside != Path():
            yield _text("same_file", value=value)
        elif not path.is_absolute() and not held:
            yield _text("no_file", value=value, base=base.named)


def _python_path(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    return [cwd / entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or with a null byte: no path
        return False


DEFAULT_REPEAT = 5


def order(repeat: int) -> list[str]:
    """base_1, head_1, head_2, base_2, base_3, …: a linear drift is the same for both sides of two pairs."""
    names = []
    for pair in range(1, repeat + 1):
        sides = ("base", "head") if pair % 2 else ("head", "base")
        names += [f"{side}_{pair}" for side in sides]
    return names


class Series(Struct, frozen=True):
    """The trainings of `plan` on both sides. plan: the head's; its `out` holds all run folders. head: commit, branch
    and dirty flag of the working tree. repeat: trainings a side."""

    plan: Plan
    base: BaseCommit
    head: GitState
    repeat: int

    def plan_of(self, label: str, environ: Mapping[str, str]) -> Plan:
        """The plan of one training, ``base_2`` say."""
        plan = replace(self.plan, name=f"{self.plan.name}-{label}", out=self.plan.out / label)
        return base_plan(plan, self.base, environ) if label.startswith("base") else plan

    def named(self, label: str) -> str:
        """Which code the training runs, for people."""
        if label.startswith("base"):
            return self.base.named
        return _text("tree", commit=short(self.head["commit"]), dirty=self.head["dirty"])

    def shell(self, environ: Mapping[str, str]) -> str:
        """All commands, one a line, to paste into a shell."""
        git = ["git", "-C", str(self.base.repository.root)]
        lines = [shlex.join([*git, *add_command(self.base.commit, self.base.tree)])]
        for link, target in editable_links(self.base).items():
            lines.append(shlex.join(["mkdir", "-p", str(link.parent)]))
            lines.append(shlex.join(["ln", "-s", str(target), str(link)]))
        for label in order(self.repeat):
            plan = self.plan_of(label, environ)
            command = plan.shell(environ)
            if plan.checkout is not None:
                command = f"(cd {shlex.quote(str(plan.checkout.folder))} && {command})"
            lines.append(command)
        lines.append(shlex.join([*git, *remove_command(self.base.tree)]))
        return "\n".join([*lines, shlex.join(["rm", "-r", str(self.base.folder)])])

    def warnings(self) -> list[str]:
        """What the user may not expect of these trainings."""
        found = list(argument_warnings(self.base, self.plan.trains))
        if self.base.repository.in_commit(self.base.commit, Path(".gitmodules")):
            found.append(_text("submodules", base=self.base.named))
        if self.head["commit"] == self.base.commit and not self.head["dirty"]:
            found.append(_text("unchanged", base=self.base.named))
        return found


def prepare(plan: Plan, ref: str, repeat: int, environ: Mapping[str, str]) -> Series:
    """The series of `plan` against `ref`, with everything checked. Raises UsageError for what cannot work: several
    nodes, no git, no repository, no such commit, a script or a working folder that it does not have."""
    if plan.cluster.nnodes > 1:
        raise UsageError(_text("several_nodes"))
    if repeat < 1:
        raise UsageError(_text("repeat", repeat=repeat))
    cwd = Path.cwd()
    repository = find_repository(cwd)
    commit = repository.commit(ref)
    folder = Path(tempfile.gettempdir()).resolve() / f"traceops-base-{short(commit)}"
    base = BaseCommit(repository, ref, commit, cwd, folder)
    check(base, plan.trains, environ)
    if (head := git_state(cwd)) is None:
        raise UsageError(_text("commit_unknown", ref=ref, folder=str(cwd)))
    return Series(plan, base, head, repeat)


def run_series(series: Series) -> int:
    """Train both sides in turn; returns 0, or the exit code of the training that failed and so ended the series.
    Completed trainings are listed in ``pairs.json``, one by one. The worktree is removed whatever happens. Raises
    UsageError where a training recorded nothing, or the base ran code of the head."""
    screen = Screen()
    where = short_path(series.plan.out)
    for warning in series.warnings():
        screen.say(f"note: {warning}")
    done: list[str] = []
    labels = order(series.repeat)
    with ended_by_signals(), ExitStack() as scope:
        series = replace(series, base=replace(series.base, folder=scope.enter_context(temporary_folder())))
        base = series.base
        scope.enter_context(checked_out(base.repository, base.commit, base.tree))
        for link, target in editable_links(base).items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        code_of_head = base.repository.fingerprint()
        _write_pairs(series, done)
        for number, label in enumerate(labels, start=1):
            screen.say(f"{number} of {len(labels)}: {label}, {series.named(label)}")
            plan = series.plan_of(label, os.environ)
            if plan.checkout is not None:
                imports = _imports(series, label)
                imports.mkdir(parents=True)
                plan = replace(plan, extra_env={**plan.extra_env, IMPORTS_ENV: str(imports)})
            if code := launch(plan, advise=False):
                screen.say(_text("stops", label=label, code_of=series.named(label), code=code))
                screen.say(_text("complete", done=len(done), all=len(labels), out=where))
                return code
            # Raises UsageError if the training is of no use, though it ended well.
            ranks = read_ranks(series.plan.out / label)
            if not any(rank.traces for rank in ranks):
                why = next((rank.note for rank in ranks if rank.note), None)
                raise UsageError(_text("nothing_recorded", label=label, why=why))
            listed = _imports(series, label).glob("*.txt")  # by the ranks: see IMPORTS_ENV
            loaded = {Path(line) for file in listed for line in file.read_text().splitlines()}
            for warning in check_imports(base, label, loaded):
                screen.say(f"note: {warning}")
            done.append(label)
            _write_pairs(series, done)
            if code_of_head != (code_of_head := base.repository.fingerprint()):
                screen.say(_text("changed"))
    screen.say(f"next: traceops compare {where}")
    return 0


def _imports(series: Series, label: str) -> Path:
    return series.base.folder / "imports" / label


def _write_pairs(series: Series, done: list[str]) -> None:
    document = {
        "schema_version": SCHEMA_VERSION,
        "base": {"ref": series.base.ref, "commit": series.base.commit},
        "head": {"commit": series.head["commit"], "dirty": series.head["dirty"]},
        "repeat": series.repeat,
        "order": done,
    }
    write_json(series.plan.out / "pairs.json", document)
