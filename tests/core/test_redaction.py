"""Secrets are taken out of what is recorded, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from redaction_lines import ASIDE, SEEN, Line

from traceops.core.documents import redact_fields
from traceops.core.redaction import MARK, redact_text, redact_value, redact_words


def expected(line: Line) -> str:
    text = line.text
    for secret in line.secrets:
        text = text.replace(secret, MARK)
    return text


@pytest.mark.parametrize("line", (*SEEN, *ASIDE), ids=lambda line: line.text[:40])
def test_a_line_keeps_all_but_its_secrets(line: Line) -> None:
    assert redact_text(line.text) == expected(line)
    assert redact_text(expected(line)) == expected(line)


KEY = next(line for line in SEEN if "--api-key " in line.text).secrets[0]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--api-key", KEY, "--lr", "3e-4"], ["train.py", "--api-key", MARK, "--lr", "3e-4"]),
        (["--password", "correct horse"], ["--password", MARK]),
        (["--password=correct horse, battery"], [f"--password={MARK}"]),
        (["--env", f"MY_API_KEY={KEY}"], ["--env", f"MY_API_KEY={MARK}"]),
        (["--env", "MY_API_KEY=two words"], ["--env", f"MY_API_KEY={MARK}"]),
        (["curl", "-H", "Authorization: Bearer abc.def", "x"], ["curl", "-H", f"Authorization: Bearer {MARK}", "x"]),
        (["curl", "-u", "ann:hunter2", "x"], ["curl", "-u", MARK, "x"]),
        (["python", "-u", "train.py"], ["python", "-u", "train.py"]),
        (["--token", "gpt2"], ["--token", "gpt2"]),
        (["--max-tokens", "512", "--tokenizer", "t5-small"], ["--max-tokens", "512", "--tokenizer", "t5-small"]),
        (["--use-auth-token", "train.py"], ["--use-auth-token", "train.py"]),
        (["--api-key", "--lr", "1"], ["--api-key", "--lr", "1"]),
        (["--data", "https://ann:pw@host/x"], ["--data", f"https://{MARK}@host/x"]),
        ([f"config.wandb.api_key={KEY}"], [f"config.wandb.api_key={MARK}"]),
    ],
)
def test_a_command_keeps_all_words_but_its_secrets(words: list[str], shown: list[str]) -> None:
    assert redact_words(words) == shown
    assert redact_words(shown) == shown


def test_data_is_redacted_by_its_keys_at_any_depth() -> None:
    data = {
        "config": {"hub_token": KEY, "lr": 0.1, "heads": [1, 2], "nested": [{"password": "x"}, None, True]},
        "command": ["train.py", "--api-key", KEY],
        "api_keys": ["one", "two"],
        "tokens_per_step": 8192,
        "tokenizer": "gpt2",
    }
    assert redact_value(data) == {
        "config": {"hub_token": MARK, "lr": 0.1, "heads": [1, 2], "nested": [{"password": MARK}, None, True]},
        "command": ["train.py", "--api-key", MARK],
        "api_keys": [MARK, MARK],
        "tokens_per_step": 8192,
        "tokenizer": "gpt2",
    }
    variables = {"DB_PASSWORD": "anything", "HF_TOKEN": KEY, "NCCL_ALGO": "Ring"}
    assert redact_value(variables) == {"DB_PASSWORD": MARK, "HF_TOKEN": MARK, "NCCL_ALGO": "Ring"}


def test_a_private_key_goes_with_all_its_lines() -> None:
    key = "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE\nabcd\n-----END " + "RSA PRIVATE KEY-----"
    shown = redact_text(f"before\n{key}\nafter")
    assert shown.startswith("before\n") and shown.endswith("\nafter")
    assert "MIIE" not in shown and "abcd" not in shown
    assert "MIIE" not in redact_text(key[:50])  # the excerpt ends within it


class Inner(msgspec.Struct, frozen=True):
    text: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]
    command: tuple[str, ...]
    number: int = 1


def test_typed_data_is_redacted_in_every_field_or_in_those_that_are_named() -> None:
    outer = Outer((Inner(f"login with {KEY}", {"password": "x", "lr": 0.1}),), ("--api-key", KEY))
    shown = Outer((Inner(f"login with {MARK}", {"password": MARK, "lr": 0.1}),), ("--api-key", MARK))
    assert redact_fields(outer) == shown
    assert redact_fields(outer, "command") == Outer(outer.inner, shown.command)
    assert redact_fields(shown) is shown
