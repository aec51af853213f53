"""Runs what a Spec says on the engine of tests/generated_run: its ranks, groups, links and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from generated_run import ClockShift, Collective, Compute, Groups, Memcpy, Program, SimulatedRun, SlowLink
from generated_run.simulate import _simulate  # the runs differ: none is asked for twice

from benchmarks.simulated.schedules import BY_KIND
from benchmarks.simulated.spec import Spec
from benchmarks.simulated.step import Op

WARMUP, FIRST_STEP = 1, 3
_FAR_GROUP = {"pp": "pp", "tp": "dp"}
FREE_GBS, FREE_US = 1e9, 0.0


@dataclass(frozen=True)
class RankProgram(Program):  # type: ignore[misc]  # mypy does not read tests/
    """A program whose ranks do not all do the same: `own` has the operations of each rank and step."""

    own: tuple[tuple[tuple[Op, ...], ...], ...] = ()

    def ops(self, step: int, stage: int) -> tuple[Op, ...]:
        """Of this rank: every rank is a stage of the world."""
        return self.own[stage][step]

    @property
    def streams(self) -> dict[str, int]:
        """Number of each stream; those of communication come in the order of their names."""
        ops = [op for rank in self.own for step in rank for op in step]
        names = {op.stream for op in ops if isinstance(op, Compute | Memcpy | Collective)} - {"compute"}
        return {"compute": 7} | {name: 17 + 4 * number for number, name in enumerate(sorted(names))}


def simulate_spec(spec: Spec) -> SimulatedRun:
    """Run it."""
    faults: list[ClockShift | SlowLink] = [
        ClockShift(rank, offset, drift) for rank, (offset, drift) in enumerate(spec.clocks)
    ]
    for trouble in () if spec.no_transfer else spec.of("slow_link"):
        far = spec.world > spec.per_host
        ranks = tuple(range(spec.per_host, spec.world)) if far else (spec.world - 1,)
        faults.append(SlowLink(_FAR_GROUP.get(spec.kind, "world"), trouble.size, ranks))
    for step, factor in enumerate(spec.net[: spec.steps + WARMUP], FIRST_STEP - WARMUP):
        faults.append(SlowLink(_FAR_GROUP.get(spec.kind, "world"), factor, steps=(step,)))
    return _simulate.__wrapped__(_program(spec), spec.world, tuple(faults), spec.seed, spec.per_host)


def _program(spec: Spec) -> Program:
    made = BY_KIND[spec.kind]
    own = tuple(
        tuple(tuple(made(spec, rank, step - WARMUP).ops()) for step in range(spec.steps + WARMUP))
        for rank in range(spec.world)
    )
    return RankProgram(
        name=spec.kind, groups=_groups(spec), steps=((),) * (spec.steps + WARMUP), staged="world", own=own,
        warmup=WARMUP, first_step=FIRST_STEP, launch_us=0.5 if spec.no_host else spec.launch_us, latency_us=5.0,
        queue=1024, jitter=spec.jitter, end_jitter_us=1.5,
    )  # fmt: skip


def _groups(spec: Spec) -> tuple[Groups, ...]:
    one_host = spec.per_host == spec.world
    near, far = (spec.bandwidth_gbs, spec.latency_us), (spec.far_gbs, 1.5 * spec.latency_us)
    wide = near if one_host else far
    if spec.no_transfer:
        near = far = wide = (FREE_GBS, FREE_US)
    groups = [Groups("world", "default_pg", None, 1, *wide)]
    if spec.kind == "tp":
        groups += [Groups("tp", "mesh_tp", spec.degree, 1, *(near if spec.degree <= spec.per_host else far))]
        groups += [Groups("dp", "mesh_dp", None, spec.degree, *wide)]
    if spec.kind == "pp":
        each = spec.world // spec.degree
        groups += [Groups("pp", "mesh_pp", spec.degree, each, *wide), Groups("dp", "mesh_dp", each, 1, *near)]
    if spec.kind == "ep":
        groups += [Groups("ep", "mesh_ep", None, 1, *wide)]
    return tuple(groups)
