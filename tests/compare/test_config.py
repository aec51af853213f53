"""Settings from traceops.toml and pyproject.toml, and what is said of wrong ones."""

from datetime import date
from pathlib import Path

import pytest

from traceops.compare.config import CompareConfig, load_config, with_thresholds
from traceops.compare.model import Waiver
from traceops.core.errors import UsageError

FULL = """
baselines = "s3://bucket/baselines"
[compare]
confidence = 0.99
launch_noise_pct = 0.8
[compare.thresholds]
step_time = 3
peak_memory = false
idle_input = 2.5
[[compare.waivers]]
metric = "kernels"
reason = "fused optimizer off until #12"
until = 2026-12-31
limit_pct = 20
"""


def test_everything_there_is(tmp_path: Path) -> None:
    (tmp_path / "traceops.toml").write_text(FULL)
    (tmp_path / "a" / "b").mkdir(parents=True)
    config = load_config(tmp_path / "a" / "b")
    assert config == load_config(file=str(tmp_path / "traceops.toml"))
    assert config.confidence == 0.99 and config.launch_noise_pct == 0.8
    assert config.baselines == "s3://bucket/baselines" and config.source == str(tmp_path / "traceops.toml")
    assert config.waivers == (Waiver("kernels", "fused optimizer off until #12", date(2026, 12, 31), 20.0),)
    assert [config.threshold(name) for name in ("step_time", "peak_memory", "idle_input", "kernels", "idle")] == [
        3.0, None, 2.5, 10.0, None,
    ]  # fmt: skip


def test_pyproject_serves_too_and_a_repository_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "traceops.toml").write_text("[compare]\nconfidence = 0.9\n")
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    assert load_config(project) == CompareConfig()
    (project / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load_config(project) == CompareConfig()
    (project / "pyproject.toml").write_text("[tool.traceops.compare.thresholds]\nstep_time = 2\n")
    assert load_config(project).threshold("step_time") == 2.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[compare", "is not valid TOML"),
        ("[compar]\n", "did you mean compare?"),
        ("[compare.thresholds]\nstep_tim = 3", "did you mean step_time?"),
        ("[compare.thresholds]\nstep_time = -3", "is no percentage"),
        ("[compare.thresholds]\nstep_time = true", "is no percentage"),
        ("[compare]\nconfidence = 95", "between 0.5 and 1"),
        ('[[compare.waivers]]\nmetric = "idle"\nuntil = 2026-01-01', "needs a reason"),
        ('[[compare.waivers]]\nmetric = "idle"\nreason = "x"\nuntil = "soon"', "YYYY-MM-DD"),
        ('[[compare.waivers]]\nmetric = "nothing"\nreason = "x"\nuntil = 2026-01-01', "no metric nothing"),
        ("baselines = 3", "in quotes"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "traceops.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_config(file=str(path))
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_the_command_line_wins() -> None:
    config = with_thresholds(CompareConfig(thresholds={"step_time": 3.0}), ["7", "kernels=off", "idle=1.5"])
    assert [config.threshold(name) for name in ("step_time", "kernels", "idle")] == [7.0, None, 1.5]
    for wrong in ("nothing=3", "step_time=x", "step_time=nan", "-1"):
        with pytest.raises(UsageError):
            with_thresholds(CompareConfig(), [wrong])
