import subprocess
import sys

import pytest

_LIGHT = "import sys; assert not {'torch', 'pandas', 'numpy'} & set(sys.modules), 'not light'"


@pytest.mark.parametrize(
    "program",
    [
        "import traceops; traceops.capture('x'); traceops.Schedule()",
        "import traceops.capture, traceops; traceops.capture('x')",
        "import traceops; import traceops.capture; traceops.capture('x')",
        "import traceops; traceops.capture; import traceops.capture; traceops.capture('x')",
        "from traceops.capture import capture, Schedule, CaptureSettings; capture('x', schedule=Schedule())",
        "import traceops.capture.schedule, traceops; traceops.capture('x'); traceops.Schedule()",
        "import traceops.cli.run",
    ],
)
def test_capture_is_callable_in_every_import_order_and_light(program):
    subprocess.run([sys.executable, "-c", f"{program}; {_LIGHT}"], check=True)
