"""The repository that a run is started in, by git: commits, files, differences, and a temporary checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from msgspec import Struct

from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.text import meant
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
        """The commit that `ref` names.

        Raises UsageError if there is none.
        """
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
        raise UsageError("--against needs git to check out the other commit; install git") from None
    if done.returncode == 0:
        return Repository(Path(os.fsdecode(done.stdout.rstrip(b"\n"))).resolve())
    said = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
    raise UsageError(f"--against compares with a commit of the repository that {folder} lies in: {said}")


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
            said = done.stderr.decode(errors="replace").strip()
            raise UsageError(f"git cannot check out {short(commit)} into {tree}: {said}")
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
    # nohup and the like ignore a signal on purpose
    ours = [number for number in handlers if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, handlers[number]) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
