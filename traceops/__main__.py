"""`python -m traceops` is the `traceops` command."""

import sys

if __name__ == "__main__":  # workers of an executor may import this to find what they are sent
    # The working folder, where a json.py or a folder called torch would be executed; traceops may be in it.
    if not getattr(sys.flags, "safe_path", False) and not __file__.startswith(f"{sys.path[0]}/traceops/"):
        del sys.path[0]

    import signal

    if heard := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it starts ends it without a word

    from traceops.cli import main

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
