"""Numbers as people read them: counts, sizes, times, rates, percentages. Pure functions, the only formatters we have.

Sizes count in units of 1000, as bandwidths do; memory that a system gives by 1024 has its own function. Where two
functions differ in digits they do so on purpose: a sentence has room for less than a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

UNKNOWN = "–"
_SIZES = ("B", "kB", "MB", "GB", "TB")
_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def stored(value: float) -> float:
    """A figure as reports and findings hold it, to a millionth: it is rounded once, where it is shown."""
    return round(float(value), 6)


def as_measured(value: float) -> float:
    """A figure of a finding's evidence as it is shown: to three decimals, small ones to four."""
    return round(value, 3 if abs(value) >= 0.1 else 4)


def events_text(count: int) -> str:
    """'1 event is', '3 events are'."""
    return "1 event is" if count == 1 else f"{count} events are"


def three_digits(values: Sequence[float]) -> int:
    """Decimals that leave the largest value about three digits."""
    most = max((abs(value) for value in values), default=0.0)
    return 0 if most >= 1000 else 1 if most >= 100 else 2 if most >= 1 else 3 if most else 0


def number_text(value: float, decimals: int | None = None) -> str:
    """About three digits without `decimals`; never '0.00': zero is '0', and what would round to it is '<0.01'."""
    decimals = three_digits([value]) if decimals is None else decimals
    if not value:
        return "0"
    if abs(value) < 0.5 * 10.0**-decimals:
        least = f"{10.0**-decimals:.{decimals}f}"
        return f"<{least}" if value > 0 else f">-{least}"
    text = f"{value:,.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"
    return text.replace(",", "\u202f")


def fixed_text(value: float | None, decimals: int) -> str:
    """So many decimals, for columns that line up; a dash if not known."""
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def count_text(value: float) -> str:
    """A count in a sentence, '1,020': whole where it is, else one decimal."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def count(value: object) -> int | None:
    """A count or number of a document that arithmetic on int64 survives."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def mean_count_text(value: float | None) -> str:
    """A count that is a mean over ranks, for tables: whole where it is, else three digits; '<0.01' for less."""
    if not value:
        return "0"
    if value < 0.01:
        return "<0.01"
    return f"{value:.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.3g}"


def size_text(nbytes: float, decimals: int | None = None) -> str:
    """Bytes by 1000, '33.6 MB': about three digits without `decimals`. What is below 1 kB is whole."""
    return " ".join(_sized(nbytes, decimals))


def size_range_text(least: float, most: float) -> str:
    """'21.0–22.5 MB', '980 kB to 1.02 MB', or one size where both read alike."""
    (low, low_unit), (high, high_unit) = _sized(least, None), _sized(most, None)
    if (low, low_unit) == (high, high_unit):
        return f"{high} {high_unit}"
    return f"{low}–{high} {high_unit}" if low_unit == high_unit else f"{low} {low_unit} to {high} {high_unit}"


def _sized(nbytes: float, decimals: int | None) -> tuple[str, str]:
    value, unit = float(nbytes), "B"
    for unit in _SIZES:
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{value:.0f}", unit
    digits = max(three_digits([value]) - 1, 0) if decimals is None else decimals
    return f"{value:.{digits}f}", unit


def memory_text(nbytes: float) -> str:
    """Bytes by 1024, '64 MB', '1.5 TB': as systems give the size of /dev/shm and of limits."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"


def message_text(nbytes: int) -> str:
    """'256 MiB' for what is a whole number of them, as the sizes of a sweep are; else as `size_text`."""
    for unit, factor in _BINARY:
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return size_text(nbytes)


def gib_text(nbytes: float) -> str:
    """Bytes of a GPU's memory as torch gives them, by 1024: '6.26 GiB', '0 bytes'."""
    for unit, factor in _BINARY:
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes:.0f} bytes"


def ms_text(ms: float) -> str:
    """Milliseconds without the unit, about three digits: 0.042, 1.25, 29.3, 157."""
    size = abs(ms)
    return f"{ms:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def us_text(us: float) -> str:
    """A short time given in µs with its unit, about three digits: '9.81 µs', '11.0 ms'."""
    return f"{us:.3g} µs" if us < 999.5 else f"{ms_text(us / 1000)} ms"


def digits_text(value: float, digits: int = 4) -> str:
    """About so many digits, never as a power of ten: '23', '41.46', '12,346', '0.0000123'."""
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{value:,.0f}"
    return f"{value:.{digits + 4}f}".rstrip("0").rstrip(".") if "e-" in text else text


def ms_change_text(ms: float) -> str:
    """'+4.1 ms': what a step takes more or less, not finer than 0.01."""
    return f"{ms:+.{0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2}f} ms"


def minute_text(time_ns: int) -> str:
    """The minute in UTC, '2026-11-20 14:05'. Raises OverflowError, ValueError or OSError for no time of a calendar."""
    return f"{datetime.fromtimestamp(time_ns / 1e9, tz=timezone.utc):%Y-%m-%d %H:%M}"


def clock_text(seconds: float) -> str:
    """A duration as clocks show it: '0:07', '2:05:00'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate_text(gbs: float) -> str:
    """GB/s without the unit, about three digits: '381', '18.4', '0.82'."""
    return f"{gbs:.0f}" if gbs >= 100 else f"{gbs:.1f}" if gbs >= 10 else f"{gbs:.2g}"


def percent_text(pct: float) -> str:
    """'12 %', '0.27 %'; what is smaller than 0.01 % is within that."""
    if 0 < pct < 0.01:
        return "0.01 %"
    if 99.5 <= pct < 99.95:  # not all of it
        return f"{pct:.1f} %"
    return f"{pct:.0f} %" if pct >= 10 else f"{pct:.2g} %"


def percent_changes(pcts: Sequence[float]) -> list[str]:
    """Signed percents without the sign %, all with the decimals that the largest needs; never '-0.0'."""
    most = max(abs(pct) for pct in pcts)
    decimals = 0 if most >= 100 else 1 if most >= 1 else 2
    return [f"{pct:+.{decimals}f}" if round(pct, decimals) else f"{0:.{decimals}f}" for pct in pcts]
