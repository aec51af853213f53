"""What `traceops doctor` advised, as a run applies it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from traceops.core.errors import UsageError
from traceops.doctor.settings import read_settings


class Applied(Struct, frozen=True):
    """Variables to set and to remove before the ranks start, less those that --env decides.

    source: the file, as the user named it. overruled: names that --env decided otherwise.
    """

    source: str
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()

    def line(self) -> str:
        """What is applied, for people."""
        parts = [f"{name}={value}" for name, value in self.set.items()]
        if self.unset:
            parts.append(f"without {', '.join(self.unset)}")
        if self.overruled:
            parts.append(f"--env decides {', '.join(self.overruled)}")
        return f"settings of {self.source}: {'; '.join(parts) or 'nothing to change'}"


def read_applied(path: str, extra_env: Mapping[str, str], *, fallback: str | None) -> tuple[Applied, int | None]:
    """The settings in the doctor's file, and the ranks that one is to stand in for where no setting worked.

    extra_env: of --env. fallback: of --fallback.
    Raises InputError for a file that is not the doctor's, UsageError where it holds no setting that works and
    the user does not ask for the fallback.
    """
    told = read_settings(path)
    if told.fallback is not None and fallback is None:
        raise UsageError(
            f"{path}: no multi-GPU setting worked; add --fallback single to train on one GPU with gradient "
            f"accumulation times {told.fallback}, or leave --settings out to start the ranks anyway"
        )
    applied = Applied(
        path,
        {name: value for name, value in told.set.items() if name not in extra_env},
        tuple(name for name in told.unset if name not in extra_env),
        tuple(name for name in (*told.set, *told.unset) if name in extra_env),
    )
    return applied, told.fallback
