"""Whether waiting was charged to the ranks that caused it: what nobody is charged for was not explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceops.across.lateness import Lateness
from traceops.core.intervals import Intervals, intersect
from traceops.measure.summary import RankSummary

_MOST_OF_WAITING = 0.05  # that nobody is charged for: with more, shares of it mean little
_MOST_OF_STEPS = 0.02  # of the ranks' time: less hides no straggler


@dataclass(frozen=True)
class ChargedWaiting:
    """Exposed waiting (comm_wait in the ledger) of all ranks in the steps that they share, ns, and who answers for it.

    unheld_ns: something else kept the waiting rank, such as its own host, so that it lost nothing by waiting.
    charged_ns: charged to the rank that caused it. steps_ns: all ranks' time in these steps.
    """

    waiting_ns: int
    unheld_ns: int
    charged_ns: int
    steps_ns: int

    @property
    def uncharged_ns(self) -> int:
        """What nobody answers for."""
        return max(self.waiting_ns - self.unheld_ns - self.charged_ns, 0)

    @property
    def uncharged_pct(self) -> float:
        """The same in percent of all exposed waiting."""
        return 100.0 * self.uncharged_ns / self.waiting_ns if self.waiting_ns else 0.0

    def least_lead(self, share: float, others: float) -> float:
        """How many times as much a rank causes as any other can, whoever answers for what nobody is charged with.

        share: of the charged waiting that the rank causes. others: the same of the one that causes most beside it.
        """
        total = self.charged_ns + self.uncharged_ns
        known = self.charged_ns / total if total else 1.0
        return share * known / max(others * known + 1.0 - known, 1e-9)

    @property
    def holds(self) -> bool:
        """Whether all but a few percent of the waiting is charged, or so little is not that it hides no straggler."""
        most = max(_MOST_OF_WAITING * self.waiting_ns, _MOST_OF_STEPS * self.steps_ns)
        return self.uncharged_ns <= most


def charged_waiting(
    ranks: Sequence[RankSummary], waiting: Mapping[int, Intervals], lateness: Lateness
) -> ChargedWaiting:
    """How much of the ranks' exposed `waiting` is charged, over the steps of `lateness`."""
    waited = unheld = steps = 0
    for summary in ranks:
        chosen = [n in lateness.steps for n in summary.step_numbers.tolist()]
        start, end = summary.step_edges[:-1][chosen], summary.step_edges[1:][chosen]
        own = waiting[summary.rank]
        waited += int(own.within(start, end).sum())
        unheld += int(intersect(own, summary.program.unheld).within(start, end).sum())
        steps += int((end - start).sum())
    charged = round(sum(float(caused.sum()) for caused in lateness.caused.values()))
    return ChargedWaiting(waited, unheld, charged, steps)
