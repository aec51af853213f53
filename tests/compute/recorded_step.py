"""Steps of one rank with operators, inputs and kernels, as torch.profiler would write them."""

import json

from traceops.measure.activity import find_activity
from traceops.measure.launched import find_launched
from traceops.measure.steps import find_steps
from traceops.traces.kineto import load_trace

FLOAT, HALF, LONG, DOUBLE, BOOL = "float", "c10::BFloat16", "long int", "double", "bool"
NODE = "autograd::engine::evaluate_function: "
H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132}


def packed(dims):
    """Strides of a contiguous tensor."""
    strides = [1]
    for dim in reversed(dims[1:]):
        strides.insert(0, strides[0] * dim)
    return strides if dims else []


def tensor(dims, dtype=HALF, strides=None):
    """An input: a tensor's dimensions, type and strides."""
    return {"dims": list(dims), "type": dtype, "strides": packed(list(dims)) if strides is None else list(strides)}


def op(name, *inputs, us=10.0, kernel="k", inside=(), values=None, grid=1000, sequence=None):
    """An operator that launches a kernel of `us`; `inside`: names of operators around it, the outermost first."""
    return {
        "name": name, "inputs": inputs, "us": us, "kernel": kernel, "inside": inside, "values": values, "grid": grid,
        "sequence": sequence,
    }  # fmt: skip


class Writer:
    """Events of steps in file order."""

    def __init__(self, host_us):
        self.events, self.host_us, self.now, self.device, self.number = [], host_us, 1000.0, 1000.0, 0

    def event(self, cat, name, ts, dur, tid, **args):
        row = {"ph": "X", "cat": cat, "name": name, "ts": round(ts, 3), "dur": round(dur, 3), "pid": 1, "tid": tid}
        self.events.append({**row, "args": args})

    def call(self, one):
        self.number += 1
        start, shown = self.now, []
        for depth, name in enumerate(one["inside"]):
            shown.append((name, start + 0.01 * depth, self.host_us - 0.02 * depth))
        for name, ts, dur in shown:
            self.event("cpu_op", name, ts, dur, 1)
        inputs, deep = one["inputs"], 0.01 * len(shown)
        numbers = {} if one["sequence"] is None else {"Sequence number": one["sequence"]}
        self.event(
            "cpu_op", one["name"], start + deep, self.host_us - 2 * deep, 1, **numbers,
            **{"External id": self.number, "Concrete Inputs": one["values"] or [""] * len(inputs)},
            **{"Input type": [i["type"] for i in inputs], "Input Strides": [i["strides"] for i in inputs]},
            **{"Input Dims": [i["dims"] for i in inputs]},
        )  # fmt: skip
        launch = start + deep + 0.2
        self.event("cuda_runtime", "cudaLaunchKernel", launch, 0.3, 1, correlation=self.number)
        self.device = max(self.device, launch + 1)
        self.event(
            "kernel", one["kernel"], self.device, one["us"], 7, correlation=self.number, stream=7, device=0,
            grid=[one["grid"], 1, 1], **{"External id": self.number},
        )  # fmt: skip
        self.device += one["us"]
        self.now = start + self.host_us + 0.1


def write(path, calls, host_us=2.0, steps=2, device=H200):
    """A trace of equal steps of these calls, each of which takes the host `host_us`."""
    writer = Writer(host_us)
    for step in range(steps):
        begin = writer.now
        writer.now += 0.5
        for one in calls:
            writer.call(one)
        writer.now += 0.5
        writer.event("user_annotation", f"ProfilerStep#{step}", begin, writer.now - begin, 1)
        writer.now += 0.5
    document = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": writer.events}
    path.write_text(json.dumps(document))
    return path


def launched_of(path):
    """What the trace's steps launched, and the name of its GPU."""
    trace = load_trace(str(path))
    activity = find_activity(trace.events)
    return find_launched(trace.events, activity, find_steps(trace.events, activity)), trace.meta.device
