"""`python -m traceops` is the `traceops` command."""

import sys

from traceops.cli import main

sys.exit(main())
