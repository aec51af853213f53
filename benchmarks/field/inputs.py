"""The public inputs that docs/field.md scores."""

from __future__ import annotations

from benchmarks.field.eighth import EIGHTH, EIGHTH_CHECK
from benchmarks.field.eighth_fine import EIGHTH_FINE
from benchmarks.field.eleventh import ELEVENTH
from benchmarks.field.eleventh_fine import ELEVENTH_FINE
from benchmarks.field.fabric import FABRIC
from benchmarks.field.fifteenth import FIFTEENTH
from benchmarks.field.fifth_files import FIFTH_FILES
from benchmarks.field.fifth_fine import FIFTH_FINE
from benchmarks.field.fifth_logs import FIFTH_LOGS
from benchmarks.field.fourteenth import FOURTEENTH
from benchmarks.field.fourteenth_fine import FOURTEENTH_FINE
from benchmarks.field.fourth_fine import FOURTH_FINE
from benchmarks.field.fourth_logs import FOURTH_LOGS
from benchmarks.field.input import Input
from benchmarks.field.later import LATER
from benchmarks.field.logs import LOGS
from benchmarks.field.ninth import NINTH
from benchmarks.field.ninth_fine import NINTH_FINE
from benchmarks.field.odd_traces import ODD_TRACES
from benchmarks.field.seventh import SEVENTH
from benchmarks.field.sixth import SIXTH
from benchmarks.field.sixth_fine import SIXTH_FINE
from benchmarks.field.tenth import TENTH
from benchmarks.field.tenth_fine import TENTH_FINE
from benchmarks.field.third_devices import THIRD_DEVICES
from benchmarks.field.third_files import THIRD_FILES
from benchmarks.field.third_logs import THIRD_LOGS
from benchmarks.field.thirteenth import THIRTEENTH
from benchmarks.field.thirteenth_fine import THIRTEENTH_FINE
from benchmarks.field.traces import TRACES
from benchmarks.field.twelfth import TWELFTH
from benchmarks.field.twelfth_fine import TWELFTH_FINE

THIRD = (*THIRD_FILES, *THIRD_DEVICES, *THIRD_LOGS)
FOURTH = (*FOURTH_FINE, *FOURTH_LOGS)
FIFTH = (*FIFTH_FILES, *FIFTH_FINE, *FIFTH_LOGS)
EIGHTHS = (*EIGHTH, *EIGHTH_FINE, *EIGHTH_CHECK)
SAMPLE = (
    *SIXTH_FINE,
    *SIXTH,
    *SEVENTH,
    *EIGHTHS,
    *NINTH,
    *NINTH_FINE,
    *TENTH,
    *TENTH_FINE,
    *ELEVENTH,
    *ELEVENTH_FINE,
    *TWELFTH,
    *TWELFTH_FINE,
    *THIRTEENTH,
    *THIRTEENTH_FINE,
    *FOURTEENTH,
    *FOURTEENTH_FINE,
    *FIFTEENTH,
)
INPUTS: tuple[Input, ...] = (*TRACES, *ODD_TRACES, *FABRIC, *LOGS, *LATER, *THIRD, *FOURTH, *FIFTH, *SAMPLE)
