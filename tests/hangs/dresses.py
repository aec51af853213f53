"""A log as people have it: packed, in another encoding, with a collector's words around each line."""

from __future__ import annotations

import bz2
import gzip
import html
import io
import json
import lzma
import re
import textwrap
import zipfile
from collections.abc import Callable, Mapping

Dress = Callable[[str], bytes]
_TIME = "2026-03-01T10:{0:02}:{1:02}.{2:06}"


def _time(number: int) -> str:
    return _TIME.format(number // 6000 % 60, number // 100 % 60, number % 100 * 10_000)


def _each(line: Callable[[int, str], str], ends: str = "\n") -> Dress:
    return lambda text: "".join(line(n, said) + ends for n, said in enumerate(text.splitlines())).encode()


def _json(record: Callable[[int, str], object]) -> Dress:
    return _each(lambda n, said: json.dumps(record(n, said)))


def _zipped(text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/train.log", text)
    return packed.getvalue()


def _journald(n: int, said: str) -> object:
    message: object = list(said.encode()) if "\x1b" in said else said
    return {"__REALTIME_TIMESTAMP": f"{1_772_359_200_000_000 + n}", "_PID": "77", "PRIORITY": "6", "MESSAGE": message}


def _stackdriver_list(text: str) -> bytes:
    rows = [
        {"insertId": f"a{n}", "resource": {"type": "k8s_container"}, "severity": "ERROR", "textPayload": said + "\n"}
        for n, said in enumerate(text.splitlines())
    ]
    return json.dumps(rows, indent=2).encode()


def _cloudwatch_events(text: str) -> bytes:
    rows = [
        {"timestamp": 1_772_359_200_000 + n, "message": said, "ingestionTime": 1_772_359_201_000 + n}
        for n, said in enumerate(text.splitlines())
    ]
    return json.dumps({"events": rows, "nextForwardToken": "f/1/s"}, indent=4).encode()


BAR = " {0:3}%|#  | {0}/400 [00:{0:02}<10:00,  1.00s/it]"
# No dress says whose a line is.
DRESSES: Mapping[str, Dress] = {
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip, one a line": lambda text: b"".join(gzip.compress(x.encode()) for x in text.splitlines(keepends=True)),
    "xz": lambda text: lzma.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
    "zip": _zipped,
    "UTF-16, PowerShell": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16, big end first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-16 without a mark": lambda text: text.replace("\n", "\r\n").encode("utf-16-le"),
    "UTF-8 with a mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "colours": _each(lambda n, said: f"\x1b[3{n % 8}m{said}\x1b[0m"),
    "bars of tqdm": lambda text: ("".join("\r" + BAR.format(n) for n in range(40)) + "\n" + text).encode(),
    "a bar right before": lambda text: ("".join("\r" + BAR.format(n) for n in range(40)) + text).encode(),
    "script(1)": lambda text: ("Script started\n\x1b]0;me@node7\x07" + text.replace("\n", "\r\n")).encode(),
    "journald": _json(_journald),
    "journald, short": _each(lambda n, said: f"Mar 01 10:00:{n % 60:02} node7 slurmstepd[771]: {said}"),
    "journald, ISO": _each(lambda n, said: f"2026-03-01T10:00:{n % 60:02}+0000 node7 train.sh[771]: {said}"),
    "Docker": _json(lambda n, said: {"log": said + "\n", "stream": "stderr", "time": _time(n) + "Z"}),
    "docker logs -t": _each(lambda n, said: f"{_time(n)}Z {said}"),
    "containerd": _each(lambda n, said: f"{_time(n)}+00:00 stderr F {said}"),
    "Stackdriver": _json(
        lambda n, said: {"insertId": f"a{n}", "severity": "ERROR", "textPayload": said, "timestamp": _time(n) + "Z"}
    ),
    "Stackdriver, jsonPayload": _json(
        lambda n, said: {"jsonPayload": {"message": said, "pid": 7}, "severity": "INFO", "timestamp": _time(n) + "Z"}
    ),
    "gcloud --format json": _stackdriver_list,
    "CloudWatch": _json(
        lambda n, said: {"timestamp": 1_772_359_200_000 + n, "message": said, "logStreamName": "a/b/1"}
    ),
    "aws logs get-log-events": _cloudwatch_events,
    "aws logs tail": _each(lambda n, said: f"{_time(n)}+00:00 train/default/0a1b {said}"),
    "Loki": _json(lambda n, said: {"labels": {"pod": "t-0"}, "line": said, "timestamp": _time(n) + "Z"}),
    "fluent-bit": _json(lambda n, said: {"date": 1772359200.5 + n, "log": said, "kubernetes": {"pod_name": "t-0"}}),
    "kubectl --prefix": _each(lambda n, said: f"[pod/llama-worker-0/pytorch] {said}"),
    "kubectl --prefix --timestamps": _each(lambda n, said: f"[pod/llama-worker-0/pytorch] {_time(n)}Z {said}"),
    "stern": _each(lambda n, said: f"llama-worker-0 pytorch {said}"),
    "Ray": _each(lambda n, said: f"(pid=4711) {said}"),
    "Ray's actor": _each(lambda n, said: f"\x1b[36m(RayTrainWorker pid=77, ip=10.0.0.2)\x1b[0m {said}"),
    "GitHub": _each(lambda n, said: f"{_time(n)}1Z {said}"),
    "Azure": _each(lambda n, said: f"{_time(n).replace('T', ' ')[:19]}Z {said}"),
    "mail": _each(lambda n, said: f"> {said}"),
    "bullets of a chat": lambda text: ("```\n" + text + "```\n").encode(),
    "a pager's end": lambda text: (text + "\n(END)\n").encode(),
    "docker compose, coloured": _each(lambda n, said: f"\x1b[36mtrainer-1  | \x1b[0m{said}"),
    "gh run view --log": _each(lambda n, said: f"gpu-test\tRun tests\t{_time(n)}7Z {said}"),
    "GitLab": _each(lambda n, said: f"{_time(n)}Z 01O {said}"),
    "Jenkins": _each(lambda n, said: f"[{_time(n)[:23]}Z] {said}"),
    "Azure ML": _each(lambda n, said: f"{_time(n)}Z [stderr] {said}"),
    "BuildKit": _each(lambda n, said: f"#12 {n / 10:.3f} {said}"),
    "ts(1)": _each(lambda n, said: f"Mar 01 {_time(n)[11:19]} {said}"),
    "a clock": _each(lambda n, said: f"[{_time(n)[11:19]}] {said}"),
    "a program's logger": _each(
        lambda n, said: f"{_time(n)[:19].replace('T', ' ')},{n % 1000:03} - run - INFO - {said}"
    ),
    "root logger": _each(lambda n, said: f"INFO:root:{said}"),
    "loguru": _each(lambda n, said: f"{_time(n)[:19].replace('T', ' ')} | INFO     | relay:read:52 - {said}"),
    "supervisord": _each(lambda n, said: f"{_time(n)[:19]},{n % 1000:03} DEBG 'train' stderr output: {said}"),
    "syslog, RFC 5424": _each(lambda n, said: f"<14>1 {_time(n)}Z gpu07 train 771 - - {said}"),
    "a tag": _each(lambda n, said: f"wandb: {said}"),
    "lines that are numbered": _each(lambda n, said: f"{n + 1:6}\t{said}"),
    "indented by a tab": _each(lambda n, said: f"\t{said}"),
    "quoted twice": _each(lambda n, said: f"> > {said}"),
    "a fence in a quote": lambda text: "".join(f"> {x}\n" for x in ("```", *text.splitlines(), "```")).encode(),
    "colours written out": _each(lambda n, said: f"^[[31m{said}^[[0m"),
    "colours without their escape": _each(lambda n, said: f"[31m{said}[0m"),
    "HTML": lambda text: f"<html><body><pre>\n{html.escape(text)}</pre></body></html>\n".encode(),
    "a word processor's quotes": lambda text: re.sub(r'"([^"\n]*)"', "\u201c\\1\u201d", text).encode(),
    "spaces that do not break": _each(lambda n, said: re.sub("^ +", lambda found: "\xa0" * len(found[0]), said)),
    "spaces behind": _each(lambda n, said: said + "   "),
    "ends of lines twice": lambda text: text.replace("\n", "\r\r\n").encode(),
    "a bar between": lambda text: "".join(f"{x}\n\r{BAR.format(7)}" for x in text.splitlines()).encode(),
}


def _broken(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, len(line), width)] or [""]


def _folded(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_on_hyphens=False, replace_whitespace=False) or [""]


def _wrapped(way: Callable[[str, int], list[str]], width: int, before: str = "") -> Dress:
    return lambda text: "".join(f"{before}{part}\n" for line in text.splitlines() for part in way(line, width)).encode()


# Lines that a terminal or a mail program broke: a sentence may quote less, the cause and its place are the same.
WRAPS: Mapping[str, Dress] = {
    "a terminal of 80 columns": _wrapped(_broken, 80),
    "a terminal of 120 columns": _wrapped(_broken, 120),
    "a terminal of 200 columns": _wrapped(_broken, 200),
    "words of 80 columns": _wrapped(_folded, 80),
    "words of 120 columns": _wrapped(_folded, 120),
    "a mail of 72 columns": _wrapped(_folded, 72, "> "),
}
NAMES = {"gzip": "train.log.gz", "xz": "train.log.xz", "bzip2": "train.log.bz2", "zip": "logs.zip"}
# Who says a line, or seems to: a task of srun is a node where torchrun starts its ranks.
LABELS: Mapping[str, str] = {
    "srun --label": "0: {}",
    "srun --label, wide": " 3: {}",
    "mpirun": "[1,3]<stderr>:{}",
    "SageMaker": "[1,mpirank:3,algo-1]<stderr>:{}",
    "torchrun --tee": "[default3]:{}",
    "torchrun's role": "[trainer3]:{}",
    "a JobSet": "[pod/t-worker-0-0-abcde/pytorch] [default3]:{}",
    "pdsh": "gpu07: {}",
    "clush": "node-12: {}",
}
