"""How many examples a property is tried on: a number of its own in `make test`, a multiple of it in `make explore`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_OF_A_PROFILE = 100


def examples(count: int, **more: Any) -> settings:
    """For a property that is tried on `count` examples where others are tried on 100; `more` is as for settings."""
    return settings(max_examples=count * settings.default.max_examples // _OF_A_PROFILE, **more)
