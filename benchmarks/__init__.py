"""What traceops is measured with. Started from the root, as `python -m benchmarks.FOLDER.MODULE`; see README.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
