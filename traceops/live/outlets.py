"""What others see of a monitored run: metrics for Prometheus and OpenTelemetry, posts to a webhook, `traceops top`."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from traceops.core.errors import UsageError

_POST_S = 10.0
_OTLP_S = 10.0  # between two posts
_MOST_WAITING = 100  # posts to a receiver that does not answer: later ones are lost
_MOST_RANKS = 1_024  # with lines of their own: labels stay bounded
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class _Metric(NamedTuple):
    """kind, text: as Prometheus says. key: of those of each rank, in live.json, whose value is multiplied by factor."""

    kind: str
    text: str
    key: str | None = None
    factor: float = 1.0


_METRICS = {
    "traceops_steps_total": _Metric("counter", "Steps finished", "step"),
    "traceops_step_seconds": _Metric("gauge", "Median of the last steps", "ms", 1e-3),
    "traceops_step_usual_seconds": _Metric("gauge", "Usual step without what is slower now", "usual_ms", 1e-3),
    "traceops_step_age_seconds": _Metric("gauge", "Since the last step ended", "age_s"),
    "traceops_samples_total": _Metric("counter", "Samples trained on, where the script counts them", "samples"),
    "traceops_gpu_held_bytes": _Metric("gauge", "GPU memory that tensors hold", "held"),
    "traceops_gpu_reserved_bytes": _Metric("gauge", "GPU memory that torch holds", "reserved"),
    "traceops_resident_bytes": _Metric("gauge", "Memory of the process", "resident"),
    "traceops_alloc_retries_total": _Metric("counter", "Retries of the allocator", "retries"),
    "traceops_host_share": _Metric("gauge", "Where a rank's host was seen in the last seconds"),
    "traceops_gpu_mhz": _Metric("gauge", "Clock of the multiprocessors"),
    "traceops_gpu_power_w": _Metric("gauge", "Power"),
    "traceops_gpu_celsius": _Metric("gauge", "Temperature"),
    "traceops_gpu_activity": _Metric("gauge", "NVML's counters"),
    "traceops_job_seconds_total": _Metric("counter", "The job's time by what it went to"),
    "traceops_goodput_ratio": _Metric("gauge", "Productive part of the job's time"),
    "traceops_slow": _Metric("gauge", "Whether a slowdown goes on"),
    "traceops_windows_total": _Metric("counter", "Windows that detections triggered"),
    "traceops_recent_detections": _Metric("gauge", "The latest 20 detections by kind and cause"),
}

_Values = list[tuple[dict[str, Any], float]]  # labels, and the value


def metrics_text(state: dict[str, Any]) -> str:
    """The state of a run in Prometheus' text format."""
    lines: list[str] = []
    for name, values in _metrics(state).items():
        row = _METRICS[name]
        lines.extend((f"# HELP {name} {row.text}", f"# TYPE {name} {row.kind}"))
        lines.extend(f"{name}{{{_labels(labels)}}} {value:.10g}" for labels, value in values)
    return "\n".join(lines) + "\n"


def otlp_metrics(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a run as an ExportMetricsServiceRequest of OpenTelemetry's protocol, in its JSON form."""
    time_ns = str(state.get("time_ns", 0))
    metrics = []
    for name, values in _metrics(state).items():
        row = _METRICS[name]
        points = [
            {"asDouble": value, "timeUnixNano": time_ns, "startTimeUnixNano": str(state.get("began_ns", 0)),
             "attributes": [{"key": key, "value": {"stringValue": str(label)}} for key, label in labels.items()]}
            for labels, value in values
        ]  # fmt: skip
        data: dict[str, Any] = {"dataPoints": points}
        counts = {**data, "aggregationTemporality": 2, "isMonotonic": True}
        of_kind = {"sum": counts} if row.kind == "counter" else {"gauge": data}
        metrics.append({"name": name, "description": row.text, **of_kind})
    service = {"key": "service.name", "value": {"stringValue": "traceops"}}
    scopes = [{"scope": {"name": "traceops"}, "metrics": metrics}]
    return {"resourceMetrics": [{"resource": {"attributes": [service]}, "scopeMetrics": scopes}]}


def _metrics(state: dict[str, Any]) -> dict[str, _Values]:
    """By name, those that are known."""
    ranks = state.get("ranks", [])[:_MOST_RANKS]
    found: dict[str, _Values] = {}

    def metric(name: str, values: Iterable[tuple[dict[str, Any], float | None]], factor: float = 1.0) -> None:
        run = {"run": state.get("run", "")}
        if known := [({**run, **labels}, factor * value) for labels, value in values if value is not None]:
            found.setdefault(name, []).extend(known)

    for name, row in _METRICS.items():
        if row.key is not None:
            metric(name, [({"rank": one["rank"]}, one.get(row.key)) for one in ranks], row.factor)
    shares = [(one["rank"], kind, share) for one in ranks for kind, share in one.get("share", {}).items()]
    metric("traceops_host_share", [({"rank": rank, "kind": kind}, share) for rank, kind, share in shares])
    gpus = [({"ranks": " ".join(map(str, gpu["ranks"]))}, gpu) for gpu in state.get("gpus", [])]
    for key in ("mhz", "power_w", "celsius"):
        metric(f"traceops_gpu_{key}", [(labels, gpu.get(key)) for labels, gpu in gpus])
    for gpu, counters in state.get("activity", {}).items():
        metric("traceops_gpu_activity", [({"gpu": gpu, "counter": name}, value) for name, value in counters.items()])
    metric("traceops_job_seconds_total", [({"part": part}, s) for part, s in state.get("seconds", {}).items()])
    metric("traceops_goodput_ratio", [({}, state.get("goodput"))])
    metric("traceops_slow", [({}, bool(state.get("slow")))])
    metric("traceops_windows_total", [({}, state.get("windows"))])
    counts = Counter((one["kind"], str(one.get("facts", {}).get("cause", ""))) for one in state.get("events", []))
    recent = [({"kind": kind, "cause": cause}, count) for (kind, cause), count in counts.items()]
    metric("traceops_recent_detections", recent)
    return found


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})  # Prometheus' own


def _labels(labels: dict[str, Any]) -> str:
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())


def address_of(text: str) -> tuple[str, int]:
    """`[HOST:]PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--metrics {text}: give [HOST:]PORT")
    return host or "127.0.0.1", int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is none of ours to report."""


class Metrics:
    """Serves them until `close`. state: the latest one. Raises UsageError where the port cannot be had."""

    def __init__(self, address: tuple[str, int], state: Callable[[], dict[str, Any]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] in ("/metrics", "/")
                body = metrics_text(state()).encode() if known else b"not found\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", _CONTENT if known else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing is logged."""

        try:
            self._server = _Server(address, Handler)
        except OSError as error:
            raise UsageError(f"--metrics {address[0]}:{address[1]}: {error.strerror}; choose another port") from error
        self.url = f"http://{address[0]}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


class Poster:
    """Posts JSON from a thread of its own; a receiver that does not answer holds nothing up. option: that named it."""

    def __init__(self, option: str, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{option} {url}: must begin with http:// or https://")
        self._url = url
        self._waiting: queue.Queue[dict[str, Any]] = queue.Queue(_MOST_WAITING)
        self.failed = 0
        threading.Thread(target=self._run, name="poster", daemon=True).start()

    def post(self, document: dict[str, Any]) -> None:
        """Post this soon; where a hundred wait, it is lost."""
        with suppress(queue.Full):
            self._waiting.put_nowait(document)

    def _run(self) -> None:
        while True:
            body = json.dumps(self._waiting.get()).encode()
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=_POST_S):
                    pass
            except (OSError, ValueError):
                self.failed += 1
            finally:
                self._waiting.task_done()

    def finish(self, seconds: float) -> None:
        """Wait until all are posted, so long at most."""
        done = threading.Thread(target=self._waiting.join, daemon=True)
        done.start()
        done.join(seconds)


class Webhook(Poster):
    """Posts detections; `text` is what Slack shows."""

    def __init__(self, url: str) -> None:
        super().__init__("--webhook", url)

    def post(self, document: dict[str, Any]) -> None:
        """Post this soon."""
        super().post({"text": document["message"], **document})


class Otlp(Poster):
    """Posts the state of a run to a collector of OpenTelemetry, every ten seconds."""

    def __init__(self, url: str) -> None:
        super().__init__("--otlp", url if url.rstrip("/").endswith("/v1/metrics") else f"{url.rstrip('/')}/v1/metrics")
        self._due_s = 0.0

    def look(self, state: dict[str, Any], now_s: float) -> None:
        """Post it where that is due."""
        if state and now_s >= self._due_s:
            self._due_s = now_s + _OTLP_S
            self.post(otlp_metrics(state))


_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "rank": lambda one: one["rank"],
    "step": lambda one: (one["step"], one["rank"]),
    "pace": lambda one: -(one.get("ms") or 0.0),
    "input": lambda one: -one.get("share", {}).get("input", 0.0),
    "memory": lambda one: -(one.get("held") or one.get("resident") or 0),
}
SORTS = tuple(_SORTS)
_KEYS = "s sort · c capture a window · o open the run's page · q quit"
_OLD_S = 5.0
_MOST_ROWS = 64
_BAR = 28
_COLORS = {
    "productive": "green", "evaluation": "blue", "checkpoint": "cyan", "input": "yellow", "slowdown": "red",
    "hang": "bold red", "restart": "magenta", "start": "white", "compiling": "white", "other": "white",
}  # fmt: skip


def screen(state: dict[str, Any], *, sort: str, card: str, rows: int) -> RenderableType:
    """Everything, for so many rows of ranks. card: of the latest window, empty without one."""
    now = time.time()
    seconds = {part: value for part, value in state.get("seconds", {}).items() if value > 0}
    whole = sum(seconds.values())
    text = Text(f"goodput {100 * (state.get('goodput') or 0):.1f} %  ")
    for part, value in seconds.items():
        text.append("█" * round(_BAR * value / whole), style=_COLORS.get(part, "white"))
    for part, value in sorted(seconds.items(), key=lambda one: -one[1]):
        text.append(f"  {part} {value:.0f} s", style=_COLORS.get(part, "white"))
    parts: list[RenderableType] = [_head(state, now), text, _ranks(state, sort, rows)]
    if state.get("gpus"):
        parts.append(_gpus(state))
    if events := state.get("events", []):
        parts.append(Panel(_events(events, now), title="detections", title_align="left"))
    if card:
        parts.append(Panel(Text(card), title="latest window", title_align="left"))
    parts.append(Text(_KEYS, style="dim"))
    return Group(*parts)


def _head(state: dict[str, Any], now: float) -> Text:
    ranks = state.get("ranks", [])
    steps = max((one["step"] for one in ranks), default=0)
    paces = sorted(one["ms"] for one in ranks if one.get("ms"))
    text = Text(f"{state.get('run', '')}  ", style="bold")
    text.append(f"{len(ranks)} ranks · step {steps}", style="not bold")
    if paces:
        text.append(f" · {paces[len(paces) // 2]:.1f} ms/step", style="not bold")
    age = now - state.get("time_ns", 0) / 1e9
    if state.get("ended"):
        text.append(" · ended", style="dim")
    elif age > _OLD_S:
        text.append(f" · no monitor for {age:.0f} s", style="red")
    elif state.get("slow"):
        text.append(" · SLOW", style="bold red")
    return text


def _ranks(state: dict[str, Any], sort: str, rows: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "step", "ms", "usual", "age s", "own", "input", "bwd", "wait", "GiB", ""):
        table.add_column(name + ("▾" if name == sort else ""), justify="right" if name else "left")
    ranks = sorted(state.get("ranks", []), key=_SORTS[sort])
    for one in ranks[: min(rows, _MOST_ROWS)]:
        share = one.get("share", {})
        size = one.get("held") or one.get("resident") or 0
        sign = "ended" if one["ended"] else "slow" if one["slow"] else "silent" if one.get("seen_s", 0) > _OLD_S else ""
        kinds = ("own", "input", "backward", "waiting")
        table.add_row(
            str(one["rank"]), str(one["step"]), _number(one.get("ms"), 1), _number(one.get("usual_ms"), 1),
            f"{one.get('age_s', 0):.1f}", *(f"{100 * share[kind]:.0f}" if kind in share else "" for kind in kinds),
            f"{size / 2**30:.2f}", Text(sign, style="red"),
        )  # fmt: skip
    if len(ranks) > rows:
        table.add_row(f"… {len(ranks) - rows} more")
    return table


def _gpus(state: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("GPU of rank", "MHz", "W", "°C", "busy %", "SM %", "tensor %", "memory %", "strangers"):
        table.add_column(name, justify="right")
    activity = list(state.get("activity", {}).values())
    for at, gpu in enumerate(state["gpus"]):
        counters = activity[at] if at < len(activity) else {}
        known = [gpu[name] for name in ("mhz", "power_w", "celsius", "busy_pct")]
        known += [counters.get(name) for name in ("sm_active", "tensor_active", "dram_active")]
        numbers = (_number(value, 0) for value in known)
        table.add_row(" ".join(map(str, gpu["ranks"])), *numbers, " ".join(map(str, gpu["strangers"])))
    return table


def _events(events: list[dict[str, Any]], now: float) -> Text:
    text = Text()
    for event in reversed(events[-6:]):
        ago = max(now - event["seen_ns"] / 1e9, 0)
        text.append(f"{ago:5.0f} s ago  ", style="dim")
        text.append(event["message"] + "\n", style="red" if event["page"] else "")
    text.rstrip()
    return text


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
