"""Without torch, most of this folder cannot even be imported."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["strategies", "test_hf.py", "test_model_and_data.py", "test_runner.py"]
