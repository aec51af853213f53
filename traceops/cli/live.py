"""`traceops live`: a monitor beside a running job."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import suppress

from traceops.core.errors import UsageError
from traceops.core.redaction import redact_text
from traceops.live.monitor import Follower, Monitor, has_monitor, watched_folder
from traceops.live.outlets import Metrics, Otlp, Webhook, address_of

_EVERY_S = 1.0
_POSTED_S = 5.0


def main(args: argparse.Namespace) -> int:
    out = watched_folder(args.path)
    if args.windows < 0:
        raise UsageError(f"--windows {args.windows}: must be 0 or more")
    address = None if args.metrics is None else address_of(args.metrics)
    webhook = None if args.webhook is None else Webhook(args.webhook)
    otlp = None if args.otlp is None else Otlp(args.otlp)
    post = (lambda _: None) if webhook is None else webhook.post
    follows = has_monitor(out)
    monitor = Follower(out, _say, post) if follows else Monitor(out, _say, windows=args.windows, post=post)
    metrics = None if address is None else Metrics(address, lambda: monitor.state)
    if metrics is not None:
        print(f"metrics: {metrics.url}", file=sys.stderr)
    signal.signal(signal.SIGTERM, _ended)
    until = None if args.seconds is None else time.monotonic() + args.seconds
    try:
        _watch(monitor, until, otlp)
    finally:
        monitor.close()
        for poster in (webhook, otlp):
            if poster is not None:
                poster.finish(_POSTED_S)
        if metrics is not None:
            metrics.close()
    return 0


def _watch(monitor: Monitor | Follower, until: float | None, otlp: Otlp | None) -> None:
    due = time.monotonic()
    with suppress(KeyboardInterrupt):
        while until is None or time.monotonic() < until:
            with suppress(OSError):  # a full disk, a folder that goes away: the next look may succeed
                monitor.look()
            if otlp is not None:
                otlp.look(monitor.state, time.monotonic())
            if monitor.over():
                return
            due = max(due + _EVERY_S, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.05))


def _ended(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        print(redact_text(line), flush=True)
