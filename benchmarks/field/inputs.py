"""The public inputs that docs/field.md scores."""

from __future__ import annotations

from field_eighth import EIGHTH, EIGHTH_CHECK
from field_eighth_fine import EIGHTH_FINE
from field_fabric import FABRIC
from field_fifth_files import FIFTH_FILES
from field_fifth_fine import FIFTH_FINE
from field_fifth_logs import FIFTH_LOGS
from field_fourth_fine import FOURTH_FINE
from field_fourth_logs import FOURTH_LOGS
from field_input import Input
from field_later import LATER
from field_logs import LOGS
from field_ninth import NINTH
from field_ninth_fine import NINTH_FINE
from field_odd_traces import ODD_TRACES
from field_seventh import SEVENTH
from field_sixth import SIXTH
from field_sixth_fine import SIXTH_FINE
from field_third_devices import THIRD_DEVICES
from field_third_files import THIRD_FILES
from field_third_logs import THIRD_LOGS
from field_traces import TRACES

THIRD = (*THIRD_FILES, *THIRD_DEVICES, *THIRD_LOGS)
FOURTH = (*FOURTH_FINE, *FOURTH_LOGS)
FIFTH = (*FIFTH_FILES, *FIFTH_FINE, *FIFTH_LOGS)
SAMPLE = (*SIXTH_FINE, *SIXTH, *SEVENTH, *EIGHTH, *EIGHTH_FINE, *EIGHTH_CHECK, *NINTH, *NINTH_FINE)
INPUTS: tuple[Input, ...] = (*TRACES, *ODD_TRACES, *FABRIC, *LOGS, *LATER, *THIRD, *FOURTH, *FIFTH, *SAMPLE)
