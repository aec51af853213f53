"""The public inputs that docs/field.md scores."""

from __future__ import annotations

from field_fabric import FABRIC
from field_input import Input
from field_later import LATER
from field_logs import LOGS
from field_odd_traces import ODD_TRACES
from field_traces import TRACES

INPUTS: tuple[Input, ...] = (*TRACES, *ODD_TRACES, *FABRIC, *LOGS, *LATER)
