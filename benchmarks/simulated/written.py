"""Writes a simulated run as torch.profiler writes one: a kineto trace a rank, nested operators, two host threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from generated_run import RankTruth, SimulatedRun
from generated_run.nccl import names_of, operation
from generated_run.rows import Clock, metadata_row, row
from generated_run.truth import Activity, CollectiveTruth, HostRow

from benchmarks.simulated.spec import Spec

_COPIES = {
    ("Memcpy HtoD", "pageable"): "Memcpy HtoD (Pageable -> Device)",
    ("Memcpy HtoD", "input"): "Memcpy HtoD (Pinned -> Device)",
    ("Memcpy DtoH", "item"): "Memcpy DtoH (Device -> Pinned)",
}
_PASSES = {"ddp": "DistributedDataParallel.forward"}
_KERNEL = (
    '"queued": 0, {where}, "registers per thread": 168, "shared memory": 0, "blocks per SM": 1.0, "warps per SM": 8.0, '
    '"grid": [{blocks}, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12'
)


def write_run(run: SimulatedRun, spec: Spec, folder: Path) -> None:
    """rank_<r>.pt.trace.json of every rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in run.ranks:
        (folder / f"rank_{rank.rank}.pt.trace.json").write_text(_Written(run, spec, rank).text())


class _Written:
    """The trace of one rank."""

    def __init__(self, run: SimulatedRun, spec: Spec, rank: RankTruth) -> None:
        self.run, self.spec, self.rank = run, spec, rank
        self.clock = Clock(rank, (rank.on_clock(rank.window_start) // 10**9 - 1) * 10**9)
        self.device = rank.rank % spec.per_host
        self.main, self.backward = self.clock.pid, self.clock.pid + 70
        keys = ["world", *(group.key for group in run.program.groups if group.key != "world")]
        self.names = {key: str(number) for number, key in enumerate(keys)}
        self.recorded = [
            (number, one) for number, one in enumerate(rank.activities, 45_000)
            if one.end > rank.window_start and one.launch < rank.window_end
        ]  # fmt: skip

    def text(self) -> str:
        meta = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": number, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "numSms": 132}
                for number in range(self.spec.per_host)
            ],
            "distributedInfo": self._distributed(),
            "cuda_runtime_version": 13000,
            "with_stack": int(self.spec.stacks),
            "host_name": f"node{self.rank.host}",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.clock.base,
        }
        rows = [
            metadata_row("process_name", self.clock, self.main, 0, '{"name": "python"}'),
            *self._steps(), *self._activities(), *self._host(), *self._frames(),
            row("Trace", "PyTorch Profiler (0)", '"Spans"', '"PyTorch Profiler"', self.clock, self.rank.window_start,
                self.rank.window_end, '"Op count": 0'),
        ]  # fmt: skip
        return json.dumps(meta)[:-1] + ', "traceEvents": [\n' + ",\n".join(rows) + "\n]}\n"

    def _distributed(self) -> dict[str, object]:
        own = {group.key: group for group in self.run.program.groups}
        config = [
            {
                "pg_name": name, "pg_desc": own[key].description, "backend_config": "cuda:nccl",
                "pg_size": len(members), "ranks": members,
            }
            for key, name in self.names.items()
            for members in [list(own[key].members(self.rank.rank, self.run.world))]
        ]  # fmt: skip
        return {
            "backend": "nccl", "rank": self.rank.rank, "world_size": self.run.world, "pg_count": len(config),
            "pg_config": config, "nccl_version": "2.28.9",
        }  # fmt: skip

    def _on_host(self, cat: str, name: str, start: int, end: int, args: str = "", *, thread: int = 0) -> str:
        return str(row(cat, name, self.main, thread or self.main, self.clock, start, end, args))

    def _steps(self) -> Iterator[str]:
        for number, start, end in self.rank.marks:
            if self.spec.marked:
                yield self._on_host("user_annotation", f"ProfilerStep#{number}", start, end)
            own = [one for _, one in self.recorded if one.step == number and one.launch >= self.rank.window_start]
            parts = [("optimizer", "Optimizer.step#AdamW.step")]
            parts += [("forward", _PASSES[self.spec.kind])] if self.spec.kind in _PASSES else []
            for label, name in parts:
                inside = [one for one in own if one.label.startswith(label)]
                if inside:
                    begun, over = inside[0].launch - 3_000, inside[-1].launch_end + 3_000
                    yield self._on_host("user_annotation", name, begun, over)
            computed = [one for one in own if one.stream == 7]
            if computed and self.spec.marked:
                first, last = min(one.start for one in computed), max(one.end for one in computed)
                yield row("gpu_user_annotation", f"ProfilerStep#{number}", self.device, 7, self.clock, first, last)

    def _activities(self) -> Iterator[str]:
        for number, one in self.recorded:
            seen = one.launch >= self.rank.window_start
            where = f'"device": {self.device}, "context": 1, "stream": {one.stream}, "correlation": {number}'
            where = f'"External id": {number}, {where}' if seen else where
            if one.kind == "comm":
                yield from self._collective(one, number, where, seen)
                continue
            if one.kind == "memory":
                if seen:
                    yield from self._copied(one, number)
                rate = one.bytes / max(one.end - one.start, 1)
                where += f', "bytes": {one.bytes}, "memory bandwidth (GB/s)": {rate:.6f}'
                name = _COPIES[one.name, one.label]
                yield row("gpu_memcpy", name, self.device, one.stream, self.clock, one.start, one.end, where)
                continue
            if seen:
                yield from self._launched(one, number)
            args = _KERNEL.format(where=where, blocks=one.label.partition("|")[2] or 1)
            yield row("kernel", one.name, self.device, one.stream, self.clock, one.start, one.end, args)

    def _launched(self, one: Activity, number: int) -> Iterator[str]:
        """A launch inside its operators, those of backward on autograd's thread."""
        quarter = (one.launch_end - one.launch) // 4
        began, ended = one.launch - 2 * quarter, one.launch_end + quarter
        external = f'"External id": {number}'
        thread, name = self.main, one.op
        if one.label.startswith("backward"):
            thread = self.backward
            outer = f"autograd::engine::evaluate_function: {one.op}"
            yield self._on_host("cpu_op", outer, began - 300, ended + 300, external, thread=thread)
            yield self._on_host("cpu_op", one.op, began - 200, ended + 200, external, thread=thread)
            name = "aten::mm" if "Mm" in one.op or "mm" in one.op else "aten::mul"
        yield self._on_host("cpu_op", name, began, ended, external, thread=thread)
        yield self._call("cudaLaunchKernel", 211, one, number, thread)

    def _call(self, name: str, cbid: int, one: Activity, number: int, thread: int) -> str:
        args = f'"External id": {number}, "cbid": {cbid}, "correlation": {number}'
        cat = "cuda_driver" if name.startswith("cuLaunch") else "cuda_runtime"
        return self._on_host(cat, name, one.launch, one.launch_end, args, thread=thread)

    def _copied(self, one: Activity, number: int) -> Iterator[str]:
        external = f'"External id": {number}'
        over = one.launch_end + 1_000
        if one.label != "input":  # the host waits: the operators last as long
            over = min(
                (h.end for h in self.rank.host_rows if h.kind == "sync" and h.start >= one.launch_end), default=over
            )
        outer, inner = (
            ("aten::item", "aten::_local_scalar_dense") if one.label == "item" else ("aten::to", "aten::copy_")
        )
        yield self._on_host("cpu_op", outer, one.launch - 3_000, over + 1_000, external)
        yield self._on_host("cpu_op", inner, one.launch - 1_500, over + 500, external)
        yield self._call("cudaMemcpyAsync", 41, one, number, self.main)

    def _collective(self, one: Activity, number: int, where: str, seen: bool) -> Iterator[str]:
        collective = self.run.collectives[one.collective]
        op = operation(collective, self.rank.rank)
        words = names_of(op, collective.op.dtype)
        said, external = self._said(collective, op), f'"External id": {number}'
        thread = self.backward if _in_backward(one) else self.main
        if seen:
            eighth = (one.launch_end - one.launch) // 8
            outer = (one.launch - 4 * eighth, one.launch_end + 2 * eighth)
            inner = (one.launch - 3 * eighth, one.launch_end + eighth)
            if thread == self.backward:
                inside = collective.op.inside or "RegisterPostBackwardFunctionBackward"
                name = f"autograd::engine::evaluate_function: {inside}"
                yield self._on_host("cpu_op", name, outer[0] - 300, outer[1] + 300, external, thread=thread)
            yield self._on_host("cpu_op", words.c10d, *outer, external, thread=thread)
            yield self._on_host("cpu_op", "record_param_comms", *inner, external + said, thread=thread)
            note = f"nccl:{words.annotation}"
            yield self._on_host("user_annotation", note, *inner, external, thread=thread)
            yield row("gpu_user_annotation", note, self.device, one.stream, self.clock, one.start, one.end, external)
            yield self._call("cuLaunchKernelEx", 652, one, number, thread)
        args = _KERNEL.format(where=where, blocks=24) + (said if seen else "")
        yield row("kernel", words.kernel, self.device, one.stream, self.clock, one.start, one.end, args)

    def _said(self, collective: CollectiveTruth, op: str) -> str:
        """What torch adds to the kernel and to record_param_comms."""
        key = collective.op.group
        group = next(groups for groups in self.run.program.groups if groups.key == key)
        members = group.members(self.rank.rank, self.run.world)
        sent, received = collective.op.messages(len(members))
        if op == "all_to_allv":
            received = int(sent * self._tokens())
        text = (
            f', "Collective name": "{op}", "In msg nelems": {sent}, "Out msg nelems": {received}, "Group size": '
            f'{len(members)}, "dtype": "{collective.op.dtype}", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{self.names[key]}", "Process Group Description": "{group.description}", '
            f'"Process Group Ranks": "{list(members)}"'
        )
        if collective.op.to:
            way, other = ("Dst Rank", 1) if op == "send" else ("Src Rank", 0)
            return f'{text}, "{way}": {members.index(collective.members[other])}'
        return f'{text}, "Seq": {collective.sequence}' if self.spec.seq else text

    def _tokens(self) -> float:
        """What this rank receives, of what the one that receives most does."""
        hot = [] if self.spec.shared else self.spec.of("hot_expert")
        if not hot or hot[0].rank == self.rank.rank:
            return 1.0
        most = min(hot[0].size, 0.9 * self.spec.world)
        return (self.spec.world - most) / (self.spec.world - 1) / most

    def _host(self) -> Iterator[str]:
        for number, host in enumerate(self._in_window(), 10**7):
            if host.kind == "sync":
                args = f'"cbid": 131, "correlation": {number}'
                yield self._on_host("cuda_runtime", host.name, host.start, host.end, args)
            elif host.kind == "input" and self.spec.loader:
                yield self._on_host("user_annotation", self.spec.loader, host.start, host.end)
            elif host.name and self.spec.noted:
                yield self._on_host("user_annotation", host.name[3:], host.start, host.end)

    def _in_window(self) -> Iterator[HostRow]:
        for host in self.rank.host_rows:
            if self.rank.window_start <= host.start < host.end <= self.rank.window_end:
                yield host

    def _frames(self) -> Iterator[str]:
        """Python's stack, where the profiler records it: the program's functions and what waits in torch."""
        if not self.spec.stacks:
            return
        frames = [("train.py(90): <module>", self.rank.window_start, self.rank.window_end)]
        frames += [("train.py(41): train_step", start, end) for _, start, end in self.rank.marks]
        for host in self._in_window():
            if host.kind == "work" and host.name:
                frames.append((f"helpers.py(12): {host.name[3:]}", host.start, host.end))
            elif host.kind == "input":
                frames.append(("torch/utils/data/dataloader.py(733): __next__", host.start, host.end))
        for number, (name, start, end) in enumerate(frames):
            args = f'"Python id": {number}, "Python parent id": {min(number, 1) - 1}, "Ev Idx": {number}'
            yield self._on_host("python_function", name, start, end, args)


def _in_backward(one: Activity) -> bool:
    return bool(one.label.startswith(("backward", "bucket", "grad.")))
