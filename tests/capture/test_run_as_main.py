"""Programs that run in our process: their arguments, their folder, and Python's safe path."""

import sys
from types import SimpleNamespace

import pytest

from traceops.capture import run_as_main


@pytest.mark.parametrize("safe", [False, True])
def test_a_script_has_its_own_folder_unless_python_keeps_the_path_safe(tmp_path, monkeypatch, safe):
    script = tmp_path / "train.py"
    script.write_text("import sys\nassert __name__ == '__main__'\nraise SystemExit(sys.path[0])")
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    own = SimpleNamespace(flags=SimpleNamespace(safe_path=safe), path=sys.path, argv=[])
    monkeypatch.setattr(run_as_main, "sys", own)
    with pytest.raises(SystemExit) as left:
        run_as_main.run_as_main([str(script), "--x"])
    assert left.value.code == ("first" if safe else str(tmp_path))
    assert own.argv == [str(script), "--x"]
