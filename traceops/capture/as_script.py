"""Where a rank starts: ``python FILE SCRIPT [ARGS…]`` or ``python FILE -m MODULE [ARGS…]``.

No folder of the program's is on ``sys.path`` before the program runs, and then the one that Python would put there:
what we import for ourselves is never a file of the program's that has its name.
"""

import sys

LOADED_BY_PYTHON = frozenset(sys.modules)

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file

    from traceops.capture.script import run_and_end

    run_and_end(sys.argv[1:], LOADED_BY_PYTHON)
