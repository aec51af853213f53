"""`traceops mcp`, asked by the real SDK's client; and what it keeps."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from traceops.answers.asked import QUESTIONS
from traceops.answers.opening import Recent
from traceops.cli import main
from traceops.core.errors import InputError
from traceops.schemas import schema_path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "reports" / "example"
ONE = ROOT / "tests" / "data" / "slow_loader4" / "rank_0.pt.trace.json.gz"


@pytest.mark.slow
def test_an_agent_gets_the_answers_of_show_and_errors_that_list_what_there_is() -> None:
    pytest.importorskip("mcp.client.client")
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    schema = json.loads(schema_path("show").read_text())
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "traceops", "mcp"], env=dict(os.environ), cwd=ROOT
    )

    async def ask() -> None:
        async with Client(command) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {question.name.replace("-", "_") for question in QUESTIONS}
            assert sum(len(tool.description) for tool in tools.values()) <= 1200  # about 300 tokens
            for tool in tools.values():
                assert tool.annotations.read_only_hint
                assert "run" in tool.input_schema["required"]

            async def call(name: str, **arguments: Any) -> Any:
                done = await client.call_tool(name, {"run": str(EXAMPLE), **arguments})
                assert not done.is_error, done.content
                jsonschema.Draft202012Validator(schema).validate(done.structured_content)
                assert json.loads(done.content[0].text) == done.structured_content
                return done.structured_content

            summary = await call("summary")
            assert summary["headline"]["sentence"].startswith("Rank 1's input comes late")
            assert (await call("finding", rule="TO-S001"))["rows"][0]["evidence"]
            assert [row["rank"] for row in (await call("ranks", top=2))["rows"]] == [1, 2]
            assert len((await call("collectives", group="data"))["rows"]) == 6
            assert {row["kind"] for row in (await call("kernels", kind="comm"))["rows"]} == {"comm"}
            for name in ("findings", "ledger", "what_if", "steps", "roles", "checks"):
                assert (await call(name))["rows"]
            wrong = await client.call_tool("collectives", {"run": str(EXAMPLE), "group": "tensr"})
            assert wrong.is_error and "groups: default_pg (data)" in wrong.content[0].text
            gone = await client.call_tool("summary", {"run": "nowhere"})
            assert gone.is_error and "nowhere does not exist" in gone.content[0].text

    asyncio.run(ask())


def test_without_the_sdk_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "mcp":
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "traceops.cli.mcp", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["mcp"]) == 2
    assert "traceops's extra [mcp]" in capsys.readouterr().err


@pytest.mark.slow
def test_traces_are_analysed_once_and_nothing_beside_them_is_written(tmp_path: Path) -> None:
    trace = tmp_path / ONE.name
    shutil.copy(ONE, trace)
    with Recent() as recent:
        found = recent.open(str(trace))
        assert (found.path, found.read_from) == (str(trace), "traces") and found.report.ranks
        assert recent.open(str(trace)) is found
        assert [file.name for file in tmp_path.iterdir()] == [ONE.name]
        folder = found.folder
        os.utime(trace, ns=(1, 1))
        shutil.copy(EXAMPLE / "report.json", trace.with_name("report.json"))
        first = recent.open(str(trace.with_name("report.json")))
        trace.with_name("report.json").write_text(trace.with_name("report.json").read_text() + " ")
        assert recent.open(str(trace.with_name("report.json"))) is not first
        with pytest.raises(InputError, match="nowhere does not exist"):
            recent.open("nowhere")
    assert folder is not None and not folder.exists()
