"""Settings are read strictly from what the doctor wrote, and every refusal names the file."""

import json
import subprocess

import pytest

from traceops.core.errors import InputError
from traceops.doctor.settings import Settings, read_settings, shell_lines


def _write(tmp_path, content):
    path = tmp_path / "doctor.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_settings_and_the_fallback_are_read_beside_other_keys(tmp_path):
    content = {
        "schema_version": 1,
        "settings": {"set": {"NCCL_P2P_DISABLE": "1"}, "unset": ["NCCL_NET"], "does": "…"},
        "fallback": 4,
    }
    settings = read_settings(_write(tmp_path, content))
    assert settings == Settings({"NCCL_P2P_DISABLE": "1"}, ("NCCL_NET",), 4)
    assert settings.apply({"NCCL_NET": "IB", "HOME": "/"}) == {"NCCL_P2P_DISABLE": "1", "HOME": "/"}


def test_a_healthy_machine_needs_none(tmp_path):
    assert read_settings(_write(tmp_path, {"settings": None})) == Settings()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "does not hold settings"),
        ("[]", "does not hold settings"),
        ({}, "settings"),
        ({"settings": {"set": {"NCCL_P2P_DISABLE": 1}}}, "NCCL_P2P_DISABLE|int"),
        ({"settings": {"set": ["A"]}}, "does not hold settings"),
        ({"settings": {"unset": "NCCL_NET"}}, "does not hold settings"),
        ({"settings": {"set": {"A B": "1"}}}, "'A B' is not the name"),
        ({"settings": {"set": {"A\n": "1"}}}, "is not the name"),
        ({"settings": {"set": {"A": "\0"}}}, "NUL"),
        ({"settings": {"set": {"A": "1"}, "unset": ["A"]}}, "one of the two"),
        ({"settings": None, "fallback": 0}, "fallback is 0"),
        ({"settings": None, "fallback": True}, "does not hold settings"),
        ({"settings": None, "schema_version": 3}, "does not hold settings"),
        (b"\xff".decode("latin-1"), "does not hold settings"),
    ],
)
def test_what_the_doctor_would_not_write_is_refused(tmp_path, content, says):
    path = _write(tmp_path, content)
    with pytest.raises(InputError, match=says) as refused:
        read_settings(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read .* traceops doctor writes it"):
        read_settings(tmp_path / "nowhere.json")


def test_a_shell_takes_the_lines_as_they_are_meant():
    lines = shell_lines({"NCCL_SOCKET_IFNAME": "=e'th 0; echo $HOME"}, ("NCCL_NET",))
    script = "\n".join(["NCCL_NET=IB", *lines, 'printf "%s|%s" "$NCCL_SOCKET_IFNAME" "${NCCL_NET-none}"'])
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == "=e'th 0; echo $HOME|none"
