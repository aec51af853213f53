"""Plays what users of earlier tools do, and prints each row with its state: `python -m benchmarks.seeds [ITEM…]`.

rows.toml has the rows. Files of each are written to a fresh folder and the command runs on them as users type it. A row
works where all that is expected is in the answer, works in part where some is, and else is missing, with what lacks.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = Path(__file__).with_name("rows.toml")
_COMMANDS = {"doctor": "doctor --from {files} -o {folder}/out", "memory": "memory {folder}/job"}
_USUAL = "{by} {folder}/job -o {folder}/out"


def rows_of(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows, each with its item and the command that is typed."""
    for group in table["play"]:
        for row in group["rows"]:
            for by in group["by"]:
                command = _COMMANDS.get(by, _USUAL).replace("{by}", by)
                yield {**row, "item": group["item"], "name": f"{row['name']}: {by}", "run": command}
    for group in table["commands"]:
        template = group.get("template", "")
        made = [{"name": each, "run": template.replace("{each}", each)} for each in group.get("each", ())]
        made = [{**{key: group[key] for key in ("files", "before") if key in group}, **row} for row in made]
        for row in [*made, *group.get("rows", ())]:
            yield {"says": group.get("says", ()), **row, "item": group["item"]}
    for group in table["other"]:
        yield from ({**row, "item": group["item"]} for row in group["rows"])


def played(row: dict[str, Any], texts: dict[str, str]) -> tuple[str, str]:
    """The row's state, and why where it does not work."""
    if "run" not in row:
        return row["state"], row["reason"]
    if "needs" in row and find_spec(row["needs"]) is None:
        return "elsewhere", f"{row['needs']} is not installed here"
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) if "{folder}/job" not in row["run"] and "{files}" not in row["run"] else Path(folder, "job")
        job.mkdir(exist_ok=True)
        for name, parts in row.get("files", {}).items():
            text = "\n".join(texts[part].strip("\n") for part in parts)
            (job / name).write_text(f"{text}\n", encoding="utf-8")
        files = " ".join(str(job / name) for name in row.get("files", {}))
        for command in (*row.get("before", ()), row["run"]):
            command = command.replace("{folder}", folder).replace("{files}", files).replace("{root}", str(ROOT))
            ended = subprocess.run(
                [sys.executable, "-m", "traceops", *shlex.split(command.replace("{python}", sys.executable))],
                cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "400", "HOME": folder,
                     "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
    output = " ".join((ended.stdout + (ended.stderr if row.get("stderr") else "")).split())
    lacks = [says for says in row["says"] if not re.search(says, output)]
    lead = row.get("lead", "")
    if lead and not re.search(lead, " ".join(ended.stdout.split("\n\n")[0].splitlines()[:3])):
        lacks.append(f"first lines: {lead}")
    lacks += [f"there, and should not be: {word}" for word in row.get("never", ()) if re.search(word, output)]
    if ended.returncode != row.get("code", 0) or "Traceback (most recent call last)" in ended.stderr:
        return "missing", f"exit {ended.returncode}: {(ended.stderr.strip().splitlines() or ['no message'])[0][:100]}"
    if not lacks:
        return "works", ""
    return "missing" if len(lacks) >= len(row["says"]) > 0 else "in part", "not in the answer: " + "; ".join(lacks)


def main() -> int:
    """A line a row, then the count of each state; 1 where a row does not work without a reason of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", nargs="*", help="only rows of these items")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    args = parser.parse_args()
    began, table = time.monotonic(), tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    rows = [row for row in rows_of(table) if not args.items or row["item"] in args.items]
    states: Counter[str] = Counter()
    without_reason = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for row, (state, why) in zip(rows, pool.map(lambda row: played(row, table["texts"]), rows), strict=True):
            states["played, works" if "run" in row and state == "works" else state] += 1
            without_reason += ("run" in row and state in ("missing", "in part")) or not (why or state == "works")
            print(f"{row['item']:>3}  {state:<9} {row['name']}{': ' + why if why else ''}", flush=True)
    print(", ".join(f"{count} {state}" for state, count in states.most_common()), f"of {len(rows)} rows")
    print(f"without a reason: {without_reason}; {time.monotonic() - began:.0f} s")
    return int(without_reason > 0)


if __name__ == "__main__":
    sys.exit(main())
