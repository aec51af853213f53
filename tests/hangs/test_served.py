"""Servers that answer further requests behind the failure of one."""

from __future__ import annotations

import pytest

from traceops.report.hang_text import hang_sentence

# kolyangg/mlops-assignment, logs/vllm.log: 27,000 lines of a server that serves were told as a crash.
LOGGER = "(APIServer pid=1288829) ERROR 06-16 14:16:20 [serving_chat.py:251] "
ERROR = (
    "Error in preprocessing prompt inputs",
    "Traceback (most recent call last):",
    '  File "/x/vllm/entrypoints/openai/serving_chat.py", line 230, in create_chat_completion',
    "    ) = await self._preprocess_chat(",
    "ValueError: This model's maximum context length is 6144 tokens.",
)
FAILED = "".join(f"{LOGGER}{line}\n" for line in ERROR)
ANSWER = '(APIServer pid=1288829) INFO:     127.0.0.1:41806 - "{} HTTP/1.1" {}\n'
SERVED, REFUSED = (ANSWER.format("POST /v1/chat/completions", "200 OK"), ANSWER.format("POST /v1/x", "400 Bad Request"))
STARTED = "(APIServer pid=1288829) INFO:     Application startup complete.\n"


@pytest.mark.parametrize("behind", [REFUSED + SERVED, SERVED * 10], ids=["it was refused", "others are served"])
def test_a_request_that_failed(told, behind):
    diagnosis = told(STARTED + SERVED * 3 + FAILED + behind)
    assert diagnosis.roots == () and "after which its logger goes on" in hang_sentence(diagnosis)


@pytest.mark.parametrize(
    "behind",
    [
        SERVED * 3,
        ANSWER.format("GET /metrics", "200 OK") * 40,
        ANSWER.format("POST /v1/x", "500 Internal Server Error") * 40,
        REFUSED,
        SERVED + STARTED + SERVED * 9,
    ],
    ids=["only a few", "only metrics", "all fail", "nothing is served", "by another start"],
)
def test_a_server_that_failed(told, behind):
    diagnosis = told(STARTED + SERVED * 3 + FAILED + behind)
    assert "its logger goes on" not in hang_sentence(diagnosis)


def test_an_engine_that_fails_behind_such_a_request(told):
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    died = FAILED.replace("serving_chat.py:251", "core.py:500").replace(ERROR[-1], error)
    (root,) = told(STARTED + FAILED + REFUSED + SERVED * 20 + died + SERVED * 2).roots
    assert root.crash is not None and root.crash.kind == "illegal_access"
