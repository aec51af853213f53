"""How late a host is that waits for its device: by as much as the device is there later than the host would be."""

from __future__ import annotations

import numpy as np

from traceops.across.replay.graph import RankNodes
from traceops.core.arrays import Int
from traceops.measure.program import NEVER

_FAR = 1 << 40  # ns: further than any two moments of a window are apart


class WaitingHost:
    """One rank's launches and waits while it is replayed. Of each launch `late` is the host's own time less the rank's.

    Behind its first waits a host is later by `later`, each time what its device was behind then. Launches between two
    waits hold up what comes next by the most of their `late` and that.
    """

    def __init__(self, nodes: RankNodes, late: Int, work: Int, host: Int, joined_at: Int) -> None:
        """`late` is of each node; `work` and `host` of each wait; `joined_at` when the joins are over."""
        waits = nodes.waits
        order = np.argsort(nodes.stands_at, kind="stable")
        behind = np.maximum.accumulate(nodes.waits_before[order])
        # What was launched before a wait, and stands behind what was launched after it, holds nothing up.
        known = (late[order] > NEVER // 2) & (nodes.waits_before[order] == behind)
        clipped = np.where(known, np.clip(late[order], -_FAR, _FAR), -_FAR)
        most = np.maximum.accumulate(clipped + 2 * _FAR * behind) - 2 * _FAR * behind
        place = np.searchsorted(nodes.stands_at[order], waits.stands_at, side="right") - 1
        number = np.arange(len(waits.work))
        before = np.where((place >= 0) & (behind[place] == number), most[place], -_FAR) if len(order) else 0 * number
        self._waits = np.empty_like(behind)
        self._waits[order] = behind
        by_node = np.empty_like(most)
        by_node[order] = most
        self.waits: list[int] = self._waits.tolist()
        self._most: list[int] = by_node.tolist()
        self._before: list[int] = before.tolist()
        self._ahead: list[int] = (work - host).tolist()
        self.joins_before: list[int] = np.searchsorted(joined_at, waits.stands_at, side="right").tolist()
        self._held, self._later = [0], [0]
        self._own_waits = nodes.waits_before

    def passed(self) -> int:
        """How many waits are over."""
        return len(self._later) - 1

    def wait(self, held_up: int) -> None:
        """The next wait: `held_up` is how far joins had held the rank up by then."""
        number = len(self._later) - 1
        launched = self._before[number] + self._later[-1]
        held = max(self._held[-1], launched)
        self._held.append(held)
        self._later.append(max(self._later[-1], self._ahead[number] + max(held, held_up)))

    def held_up(self, node: int) -> int:
        """How far launches hold the rank up at a node."""
        waits = self.waits[node]
        return max(self._held[waits], self._most[node] + self._later[waits])

    def later(self, nodes: Int) -> Int:
        """By how much the host was later than in its own time at the launches of these nodes."""
        later: Int = np.array(self._later)[np.minimum(self._own_waits[nodes], len(self._later) - 1)]
        return later
