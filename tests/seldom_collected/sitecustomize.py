"""On the path of processes that tests start as users do: all is loaded, and the garbage collector looks at it seldom.

A quarter of what loading torch and its compiler costs is the collector's, and so is most of leaving them.
"""

import atexit
import gc

gc.set_threshold(50_000)
atexit.register(gc.freeze)
