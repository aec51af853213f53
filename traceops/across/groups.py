"""Which ranks an event of a rank concerns, as far as its trace says."""

from __future__ import annotations

import re

from traceops.across.role_names import role_of_name
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

Ranks = tuple[int, ...]
_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe\w*)([^a-z]|$)", re.IGNORECASE)


def only_group(summary: RankSummary, world: Ranks) -> Ranks | None:
    """The group of an event that names none, where there is no choice."""
    groups = {group.ranks for group in summary.meta.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return next(iter(groups))
    return world if not groups and len(world) > 1 else None


def pipeline_group(summary: RankSummary) -> Ranks | None:
    """The one group of the rank that is called a pipeline's; None where there is none, or several."""
    known = {g.ranks for g in summary.meta.groups if _PIPELINE.search(g.description) and summary.rank in g.ranks}
    return next(iter(known)) if len(known) == 1 else None


def tensor_group(summary: RankSummary, default: Ranks | None) -> Ranks | None:
    """The one group of the rank whose name says tensor parallel, or else the only group there is."""
    named = {
        group.ranks
        for group in summary.meta.groups
        if len(group.ranks) > 1 and summary.rank in group.ranks and role_of_name(group.description) == "tensor"
    }
    return next(iter(named)) if len(named) == 1 else default


def group_of(args: CommArgs | None, default: Ranks | None) -> Ranks | None:
    """The group that an event names, or the only one there is; None where it says that it was another."""
    if args is None:
        return default
    if args.group_ranks is None and args.group_size not in (None, len(default or ())):
        return None
    return args.group_ranks or default
