"""Bounds that TO-S001 to TO-S003 share: a single late rank is judged as a group of them is."""

from __future__ import annotations

IMPACT_BOUNDS = (10.0, 20.0)  # percent of the step: warning, error
BURST_PCT = (10.0, 25.0)  # what a rank late in some steps costs the worst of them: info, warning
CHANCE = 0.12  # two ranks of three steps each cannot do better than one in ten
SURE = 0.05  # chance up to which a finding has high confidence
VISIBLE = 0.25  # of the saving: what the others must be seen to wait
PROFILED = 1.2  # profiled ÷ unprofiled step from which a slow host may be the profiler's doing
FELT = 0.25  # of what a rank costs in its worst step: the others lose time in such a step too
