"""`python -m traceops` is the `traceops` command."""

import signal
import sys

if __name__ == "__main__":  # workers of an executor may import this to find what they are sent
    # The working folder, where a json.py or a folder called torch would be executed; traceops may be in it.
    if not getattr(sys.flags, "safe_path", False) and not __file__.startswith(f"{sys.path[0]}/traceops/"):
        del sys.path[0]

    ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if not ignored:  # Ctrl-C while it starts ends it without a word
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from traceops.cli import main

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
