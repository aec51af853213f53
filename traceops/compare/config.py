"""Thresholds, waivers and the like from traceops.toml or [tool.traceops] in pyproject.toml."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.compare.metrics import BY_NAME
from traceops.compare.model import Waiver
from traceops.core.errors import UsageError
from traceops.core.settings_file import nearest, only, read_settings


class CompareConfig(Struct, frozen=True):
    """How two runs are compared.

    thresholds: percent for the worse from which a metric fails the gate; None takes it out of the gate.
    launch_noise_pct: standard deviation between launches of one configuration on this machine, for sides with
    a single capture; None: what `judge.LAUNCH_NOISE_PCT` says for the device.
    baselines: where `traceops baseline` keeps its entries. source: the file this was read from.
    """

    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    confidence: float = 0.95
    power: float = 0.9
    launch_noise_pct: float | None = None
    waivers: tuple[Waiver, ...] = ()
    baselines: str | None = None
    source: str | None = None

    def threshold(self, metric: str) -> float | None:
        """Percent from which this metric fails the gate, None where it is only shown.

        Throughput is the step time seen from the other side: unless set itself it follows that.
        """
        if metric in self.thresholds:
            return self.thresholds[metric]
        if metric == "throughput" and "step_time" in self.thresholds:
            step = self.thresholds["step_time"]
            return None if step is None else 100.0 * (1.0 - 1.0 / (1.0 + step / 100.0))
        return BY_NAME[metric].threshold_pct

    def waiver(self, metric: str, today: date) -> Waiver | None:
        """The waiver of a metric that still holds; one of the step time is one of throughput."""
        covers = ("throughput", "step_time") if metric == "throughput" else (metric,)
        return next((w for name in covers for w in self.waivers if w.metric == name and today <= w.until), None)

    def expired(self, today: date) -> tuple[Waiver, ...]:
        """Waivers that held once."""
        return tuple(w for w in self.waivers if today > w.until)


def load_config(start: Path | None = None, file: str | None = None) -> CompareConfig:
    """The settings for a folder: `file`, else the nearest traceops.toml or [tool.traceops] above `start`. Raises
    UsageError naming the file and the key for anything in it that is not understood."""
    found = read_settings(start, file)
    return CompareConfig() if found is None else _parse(*found)


def with_thresholds(config: CompareConfig, texts: list[str]) -> CompareConfig:
    """The same with METRIC=PERCENT (or a percent alone, for the step time; `off`) from the command line."""
    thresholds = dict(config.thresholds)
    for text in texts:
        name, _, value = text.rpartition("=")
        name = name or "step_time"
        _known(name, "--threshold")
        thresholds[name] = _percent(None if value == "off" else value, f"--threshold {text}")
    return replace(config, thresholds=thresholds)


def _parse(table: dict[str, Any], source: str) -> CompareConfig:
    compare, where = table.get("compare", {}), f"{source}: compare"
    if not isinstance(compare, dict):
        raise UsageError(f"{source}: compare must be a table")
    only(compare, ("thresholds", "confidence", "power", "launch_noise_pct", "waivers"), where)
    thresholds = compare.get("thresholds", {})
    if not isinstance(thresholds, dict):
        raise UsageError(f"{source}: compare.thresholds must be a table of metric = percent")
    for name in thresholds:
        _known(name, f"{where}.thresholds")
    waivers = compare.get("waivers", [])
    if not isinstance(waivers, list) or not all(isinstance(w, dict) for w in waivers):
        raise UsageError(f"{source}: waivers are written as [[compare.waivers]] tables")
    noise = compare.get("launch_noise_pct")
    if (baselines := table.get("baselines")) is not None and not isinstance(baselines, str):
        raise UsageError(f"{source}: baselines must be a folder or URL, in quotes")
    return CompareConfig(
        thresholds={name: _percent(v, f"{where}.thresholds.{name}") for name, v in thresholds.items()},
        confidence=_share(compare.get("confidence", 0.95), f"{where}.confidence"),
        power=_share(compare.get("power", 0.9), f"{where}.power"),
        launch_noise_pct=None if noise is None else _percent(noise, f"{where}.launch_noise_pct"),
        waivers=tuple(_waiver(w, source) for w in waivers),
        baselines=baselines,
        source=source,
    )


def _waiver(table: dict[str, Any], source: str) -> Waiver:
    where = f"{source}: compare.waivers"
    only(table, ("metric", "reason", "until", "limit_pct"), where)
    metric, reason, until = table.get("metric"), table.get("reason"), table.get("until")
    if not isinstance(metric, str):
        raise UsageError(f"{where}: each needs metric, reason and until")
    _known(metric, where)
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"{where}: the waiver of {metric} needs a reason, in words")
    if not isinstance(until, date):
        raise UsageError(f"{where}: the waiver of {metric} needs until = YYYY-MM-DD, without quotes")
    limit = table.get("limit_pct")
    return Waiver(
        metric,
        reason.strip(),
        date(until.year, until.month, until.day),
        None if limit is None else _percent(limit, f"{where}: limit_pct of {metric}"),
    )


def _known(metric: str, where: str) -> None:
    if metric not in BY_NAME:
        raise UsageError(f"{where}: there is no metric {metric}; {nearest(metric, tuple(BY_NAME))}")


def _percent(value: Any, where: str) -> float | None:
    """A percent above or at 0; None and false take a metric out of the gate."""
    if value is None or value is False:
        return None
    try:
        number = float(value.removesuffix("%") if isinstance(value, str) else value) if value is not True else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0.0 <= number < 1e6:
        raise UsageError(f"{where}: {value!r} is no percentage; give a number such as 5, or off")
    return number


def _share(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.5 < value < 1.0:
        raise UsageError(f"{where}: {value!r} must lie between 0.5 and 1, such as 0.95")
    return float(value)
