"""All ranks together: each one's ledger with communication split, and what compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.across.clocks import ClockAlignment
from traceops.across.copies import ExposedCopies
from traceops.across.experts import Experts
from traceops.across.inference import Passes
from traceops.across.lateness import Lateness
from traceops.across.links import LinkReference, reference_of
from traceops.across.loader_pace import without_pace
from traceops.across.match import MatchedCollectives
from traceops.across.pipelines import Bubble
from traceops.across.replay.graph import StepGraph, hosts_unknown, uses_up_lead
from traceops.across.replay.what_if import WhatIf
from traceops.across.role_times import ByRole
from traceops.across.roles import NO_ROLES, Roles
from traceops.across.slow_group import SlowGroups
from traceops.across.stragglers import Straggler, Stragglers
from traceops.across.work import WorkCompared
from traceops.core.arrays import Int, Intervals, intersect, mean_ms
from traceops.core.step_words import StepWords, step_words
from traceops.core.words import NoReplay, StepsBy, Unit
from traceops.fabric.fabric import Fabric
from traceops.measure.summary import RankSummary

# Whether waiting was charged to the ranks that caused it: what nobody is charged for was not explained.


_MOST_OF_WAITING = 0.05  # that nobody is charged for: with more, shares of it mean little
_MOST_OF_STEPS = 0.02  # of the ranks' time: less hides no straggler


class ChargedWaiting(Struct, frozen=True):
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


class RankTimes(Struct, frozen=True):
    """One rank's ledger, ns per bucket and step; waiting and transfer of all its collectives in the steps.

    `caused_wait_ns` is what others waited for this rank with nothing else to do; all of them None where
    waiting and transfer cannot be told apart; the last also where much of the waiting is charged to nobody.
    `typical` says which steps are like the others: means are
    taken over these.
    """

    summary: RankSummary
    duration: Int
    buckets: dict[str, Int]
    typical: NDArray[np.bool_]
    wait_ns: int | None
    transfer_ns: int | None
    caused_wait_ns: int | None

    def mean_ms(self, bucket: str) -> float:
        """Time in a bucket, ms: mean over the typical steps."""
        return mean_ms(self.buckets[bucket][self.typical])

    @property
    def step_ms(self) -> float:
        """Duration of a step, ms: mean over the typical steps."""
        return mean_ms(self.duration[self.typical])

    @property
    def recording_ms(self) -> float:
        """The most that recording takes of a step on this host, ms: mean over the typical steps; 0 where not known."""
        own = np.array(self.summary.host.recording)
        return mean_ms(own[self.typical]) if len(own) == len(self.typical) > 0 else 0.0

    def share_pct(self, bucket: str) -> float | None:
        """Percent of the typical steps that a bucket takes; None without a step."""
        total = int(self.duration[self.typical].sum())
        return 100.0 * int(self.buckets[bucket][self.typical].sum()) / total if total > 0 else None


class CrossRank(Struct, frozen=True):
    """The reduce's result, ranks in order; `split` says whether waiting could be told from transfer.

    What compares ranks step by step (`graph` and all behind it) is None where there is only one rank, or
    nothing was matched, or no step is common to all. devices: GPUs that a process sees, None where no trace tells.
    """

    ranks: tuple[RankTimes, ...]
    matching: MatchedCollectives
    split: bool
    world: int
    hosts: dict[int, str | None]
    device: str | None
    clocks: ClockAlignment
    graph: StepGraph | None = None
    lateness: Lateness | None = None
    charged: ChargedWaiting | None = None
    stragglers: Stragglers | None = None
    what_if: WhatIf | None = None
    fabric: Fabric | None = None
    devices: int | None = None
    bubbles: tuple[Bubble, ...] = ()  # of the pipelines among the ranks
    work: Mapping[int, WorkCompared] = field(default_factory=dict)  # of stragglers whose GPU computes longer
    late_behind_loading: Straggler | None = None
    slow_groups: SlowGroups | None = None  # ranks that are late alike, so that none alone is
    unlike: tuple[int, ...] = ()  # numbers of the steps that take far longer than the typical one
    unshared: tuple[int, ...] = ()  # numbers of the steps that only some ranks recorded, where others are left
    roles: Roles = NO_ROLES
    passes: tuple[Passes, ...] = ()  # of an inference server
    experts: tuple[Experts, ...] = ()
    role_times: Mapping[int, ByRole] = field(default_factory=dict)  # exposed communication by rank and role
    loading_ms: Mapping[int, float] = field(default_factory=dict)  # by rank: what loader_paces says
    copies: tuple[ExposedCopies, ...] = ()
    own_gpus: bool | None = None  # whether each rank has a GPU to itself, None where that is not known

    @property
    def unit(self) -> Unit:
        """What times are of: a step; the whole window, where nothing says where steps begin; or none that is whole."""
        by = self.steps_by[0]
        return "none" if by == "cut_off" else "window" if by == "window" else "step"

    @property
    def loaders_unknown(self) -> tuple[int, ...]:
        """Ranks whose loader may hold up a step that a cure makes shorter: its workers were not looked at."""
        return without_pace([times.summary for times in self.ranks], self.loading_ms)

    @property
    def hosts_unknown(self) -> tuple[int, ...]:
        """Ranks whose host is slower in the window than before it, or whose lead is not seen.

        A cure takes it that it keeps up all the same.
        """
        return hosts_unknown(self.graph) if self.graph is not None else ()

    @property
    def hosts_slower(self) -> tuple[int, ...]:
        """Those of them that are known to be slower in the window."""
        ranks = {} if self.graph is None else self.graph.ranks
        return tuple(rank for rank, nodes in ranks.items() if uses_up_lead(nodes))

    @property
    def cures_are_least(self) -> bool:
        """Whether steps that a cure leaves may take longer than is predicted."""
        return bool(self.loaders_unknown or self.hosts_unknown)

    @property
    def step_words(self) -> StepWords:
        """What to call that in a sentence."""
        return step_words(self.unit)

    @property
    def steps_by(self) -> tuple[StepsBy, str]:
        """What said where steps begin, and its name: on the ranks that have steps, where there are such."""
        marks = [(times.summary.steps_by, times.summary.step_mark) for times in self.ranks]
        of_steps = [mark for mark in marks if mark[0] not in ("window", "cut_off")]
        whole = [mark for mark in marks if mark[0] == "window"]
        return next(iter(of_steps or whole or marks), ("window", ""))

    @property
    def step_ms(self) -> float:
        """The typical step, ms: the median over ranks of their means."""
        return float(np.median([times.step_ms for times in self.ranks])) if self.ranks else 0.0

    @property
    def through_host(self) -> bool:
        """Whether hosts run the collectives of what is on their GPUs, so that no link between GPUs is used."""
        return any(times.summary.through_host for times in self.ranks)

    @property
    def of_hosts_only(self) -> bool:
        """Whether hosts run all collectives of the traces and wait for no GPU: their own data, as far as known."""
        own = [times.summary for times in self.ranks]
        return self.through_host and not any(summary.exchanges_of_gpu for summary in own)

    def times_of(self, rank: int | None) -> RankTimes | None:
        """The rank's times; None where it is none of these."""
        return next((times for times in self.ranks if times.summary.rank == rank), None)

    def reference(self, group: Sequence[int]) -> LinkReference | None:
        """What the link that these ranks use should give."""
        return None if self.through_host else self.link(group)

    def link(self, group: Sequence[int]) -> LinkReference | None:
        """What the link between these ranks' GPUs should give, used or not; None where ranks may share a GPU."""
        if self.through_host and not self.own_gpus:
            return None
        return reference_of(group, self.device, self.hosts, self.world, self.fabric, self.devices)


# Why the steps of a run are not replayed.


def no_replay(run: CrossRank) -> NoReplay | None:
    """The reason; None where they are."""
    if run.what_if is not None:
        return None
    if len(run.ranks) < 2:
        return "other_ranks_missing" if run.world > 1 else "one_rank"
    if not run.matching.events:
        return "no_collectives"
    return "no_common_step" if run.split else "nothing_matched"
