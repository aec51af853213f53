"""Trainings of a commit and of the working tree in turn, so that what drifts hits both sides alike."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from traceops.capture.environment import git_state
from traceops.capture.manifest import SCHEMA_VERSION, GitState, read_ranks, write_json
from traceops.capture.settings import IMPORTS_ENV
from traceops.core.errors import UsageError
from traceops.launch.base_commit import BaseCommit, argument_warnings, base_plan, check, editable_links
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.import_check import check_imports, loaded_files
from traceops.launch.plan import Plan
from traceops.launch.repository import find_repository, short
from traceops.launch.session import launch
from traceops.launch.worktree import add_command, checked_out, ended_by_signals, remove_command, temporary_folder

DEFAULT_REPEAT = 5


def order(repeat: int) -> list[str]:
    """base_1, head_1, head_2, base_2, base_3, …: a linear drift is the same for both sides of two pairs."""
    names = []
    for pair in range(1, repeat + 1):
        sides = ("base", "head") if pair % 2 else ("head", "base")
        names += [f"{side}_{pair}" for side in sides]
    return names


class Series(Struct, frozen=True):
    """The trainings of `plan` on both sides.

    plan: the head's; its `out` holds all run folders. head: commit, branch and dirty flag of the working tree.
    repeat: trainings a side.
    """

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
        changed = " with changes" if self.head["dirty"] else ""
        return f"the working tree on {short(self.head['commit'])}{changed}"

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
            found.append(f"{self.base.named} has submodules, which are empty in the base's checkout")
        if self.head["commit"] == self.base.commit and not self.head["dirty"]:
            found.append(f"the working tree is {self.base.named}, unchanged: this measures the noise")
        return found


def prepare(plan: Plan, ref: str, repeat: int, environ: Mapping[str, str]) -> Series:
    """The series of `plan` against `ref`, with everything checked.

    Raises UsageError for what cannot work: several nodes, no git, no repository, no such commit, a script or
    a working folder that it does not have.
    """
    if plan.cluster.nnodes > 1:
        raise UsageError(
            "--against trains both sides in turn on one machine. On several nodes, start each training by "
            "itself: --out profile/NAME/base_1 from a checkout of the base, then --out profile/NAME/head_1, …"
        )
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: must be a whole number, 1 or more")
    cwd = Path.cwd()
    repository = find_repository(cwd)
    commit = repository.commit(ref)
    folder = Path(tempfile.gettempdir()).resolve() / f"traceops-base-{short(commit)}"
    base = BaseCommit(repository, ref, commit, cwd, folder)
    check(base, plan.trains, environ)
    head = git_state(cwd)
    if head is None:
        raise UsageError(f"--against {ref}: git does not say which commit {cwd} is on")
    return Series(plan, base, head, repeat)


def run_series(series: Series) -> int:
    """Train both sides in turn; returns 0, or the exit code of the training that failed and so ended the series.

    Completed trainings are listed in ``pairs.json``, one by one. The worktree is removed whatever happens.

    Raises UsageError where a training recorded nothing, or the base ran code of the head.
    """
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
            code = _train(series, label)
            if code:
                screen.say(f"{label}, {series.named(label)}, ended with {code}, so the series stops")
                screen.say(f"{len(done)} of {len(labels)} trainings are complete in {where}")
                return code
            for warning in _warnings_after(series, label):
                screen.say(f"note: {warning}")
            done.append(label)
            _write_pairs(series, done)
            if code_of_head != (code_of_head := base.repository.fingerprint()):
                screen.say(
                    "note: tracked files changed during the series: later heads do not have the code of earlier ones"
                )
    screen.say(f"next: traceops compare {where}")
    return 0


def _train(series: Series, label: str) -> int:
    plan = series.plan_of(label, os.environ)
    if plan.checkout is not None:
        imports = _imports(series, label)
        imports.mkdir(parents=True)
        plan = replace(plan, extra_env={**plan.extra_env, IMPORTS_ENV: str(imports)})
    return launch(plan, advise=False)


def _warnings_after(series: Series, label: str) -> list[str]:
    """Raises UsageError if the training is of no use, though it ended well."""
    ranks = read_ranks(series.plan.out / label)
    if not any(rank.traces for rank in ranks):
        why = next((rank.note for rank in ranks if rank.note), "no rank wrote a trace")
        raise UsageError(f"{label} recorded nothing to compare: {why}")
    return check_imports(series.base, label, loaded_files(_imports(series, label)))


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
