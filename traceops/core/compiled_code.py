"""Files that torch.compile writes: no program's own, and named by their content, so otherwise on each rank."""

from __future__ import annotations

import re

# torch/_inductor/codecache.py: `code_hash` is "c" and 51 letters of a hash in base 32, two of which name its folder.
# That may lie anywhere; by itself it is in torchinductor_USER, as a folder of a program's own may be called too.
_WRITTEN = re.compile(r"/torchinductor_[^/]+/[a-z2-7]{2}/[^/]+$|(?:^|[/\\])c[a-z2-7]{51}\.py$")


def is_compiled_code(file: str) -> bool:
    """Whether torch.compile has written this file of Python."""
    return _WRITTEN.search(file) is not None
