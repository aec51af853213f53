"""What traceops is measured with. Started from the root, as `python -m benchmarks.FOLDER.MODULE`; see README.md."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("TRACEOPS_HTA", "0")  # benchmarks measure traceops; benchmarks.seeds plays HTA's check
