"""`python -m traceops` is the `traceops` command."""

import sys

if __name__ == "__main__":  # workers of an executor may import this to find what they are sent
    from traceops.cli import main

    sys.exit(main())
