"""Tells an error that a rank made itself from one it got because a peer was gone."""

from __future__ import annotations

import re

# How a rank's error reads when the process at the other end of a connection has ended.
_PEER_GONE = re.compile(
    r"(Connection|Socket) (was |is )?(closed|reset)|Broken pipe|remote process (has )?exited|connectFullMesh failed",
    re.IGNORECASE,
)


def is_peer_failure(error: str) -> bool:
    """Whether the error is the echo of another rank's end."""
    return _PEER_GONE.search(error) is not None
