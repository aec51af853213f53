"""The formats that analyze, diagnose and doctor write their results in; the first is the page."""

from __future__ import annotations

FORMATS = ("html", "csv", "json")
