"""Several trainings with one callback: none is kept from training, and no recording is lost."""

import json

import pytest

from traceops.capture.schedule import Schedule
from traceops.capture.settings import ENV
from traceops.core.errors import UsageError
from traceops.integrations.held_capture import HeldCapture

pytestmark = pytest.mark.torch
SHORT = Schedule(skip_first=0, unprofiled=1, warmup=0, active=1)


def fit(held, steps=3):
    held.open({"trainer": "mine"})
    for _ in range(steps):
        held.step(1)
    held.close()


def steps_of(folder):
    return json.loads((folder / "rank_0" / "manifest.json").read_text())["steps"]


def test_each_training_gets_a_folder(tmp_path):
    held = HeldCapture(tmp_path / "run", SHORT, {"observe": False})
    for steps in (3, 4, 5):
        fit(held, steps)
    assert [steps_of(tmp_path / name) for name in ("run", "run-2", "run-3")] == [3, 4, 5]


def test_a_second_training_that_has_no_place_trains_on(tmp_path, capsys):
    fit(HeldCapture(tmp_path / "run-2", SHORT, {"observe": False}))
    held = HeldCapture(tmp_path / "run", SHORT, {"observe": False})
    fit(held)
    fit(held, 5)
    assert steps_of(tmp_path / "run-2") == 3
    assert "training 2 of this callback is not recorded" in capsys.readouterr().err
    with pytest.raises(UsageError, match="holds another run"):
        fit(HeldCapture(tmp_path / "run", SHORT, {}))


def test_under_the_launcher_the_first_is_kept(tmp_path, monkeypatch, capsys):
    settings = {"out": str(tmp_path / "run"), "launched": True, "observe": False}
    monkeypatch.setenv(ENV, json.dumps(settings))
    held = HeldCapture(None, SHORT, {})
    fit(held)
    fit(held, 7)
    assert steps_of(tmp_path / "run") == 3
    assert "the run folder has the first" in capsys.readouterr().err
