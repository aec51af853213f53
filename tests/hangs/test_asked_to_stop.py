"""Servers that were asked to stop: what they log while they do is no failure of theirs."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.report.hang_text import hang_sentence

# sostrowsk/dgx-spark-local-llm, vllm.log and sglang-int4.log: both were told as crashes.
SERVES = '(APIServer pid=23283) INFO:     127.0.0.1:43920 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
VLLM = (
    "(EngineCore pid=23397) INFO 08-01 21:34:51 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    "(APIServer pid=23283) INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
)
DEAD = "".join(
    f"(APIServer pid=23283) ERROR 08-01 21:34:51 [async_llm.py:704] {line}\n"
    for line in (
        "AsyncLLM output_handler failed.",
        "Traceback (most recent call last):",
        '  File "/x/vllm/v1/engine/async_llm.py", line 660, in output_handler',
        "    outputs = await engine_core.get_output_async()",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause.",
    )
)
SGLANG = "[2026-08-02 00:17:43] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
CRASHED = (
    "[2026-08-02 00:17:43] Subprocess detokenizer (pid=31379) crashed with exit code -15. Triggering SIGQUIT for "
    "cleanup...\n"
)


@pytest.mark.parametrize(("asked", "behind"), [(VLLM, DEAD), (SGLANG, CRASHED)], ids=["vllm", "sglang"])
def test_what_a_server_logs_while_it_stops(told, asked, behind):
    diagnosis = told(SERVES * 3 + asked + behind)
    assert is_quiet(diagnosis) and hang_sentence(diagnosis).startswith("The server was asked to stop")


def test_an_engine_that_died_by_itself(told):
    (root,) = told(SERVES * 3 + DEAD).roots
    assert "EngineDeadError" in root.statement


def test_what_failed_before_is_still_told(told):
    """Somebody stops a server because it failed."""
    (root,) = told(SERVES * 3 + DEAD.replace("EngineDeadError", "RuntimeError") + VLLM + DEAD).roots
    assert "RuntimeError" in root.statement


def test_a_server_that_started_once_more(told):
    again = "(APIServer pid=9) INFO:     Application startup complete.\n"
    (root,) = told(SERVES * 3 + VLLM + again + SERVES + DEAD).roots
    assert "EngineDeadError" in root.statement
