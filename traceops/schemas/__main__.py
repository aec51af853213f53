"""Writes the JSON Schema of every document: `python -m traceops.schemas`."""

from __future__ import annotations

from traceops.schemas import DOCUMENTS, schema_path, schema_text


def main() -> None:
    """Write every schema beside this module."""
    for name in DOCUMENTS:
        schema_path(name).write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
