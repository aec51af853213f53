"""The options of the commands that read: runs, reports, dumps, and this machine."""

from __future__ import annotations

import argparse
from typing import Any

from traceops.cli.declared import Command, Group, Option, add_common, add_options, flag, numbers, option, positive
from traceops.core.files import FORMATS

_FORMAT = option("--format", default=",".join(FORMATS), metavar="LIST", help=f"of {', '.join(FORMATS)} (%(default)s)")
_FAIL_ON = option("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe or worse")
_PLOTLYJS = option(
    "--plotlyjs", choices=("none", "inline", "cdn"), default="none",
    help="zoom in charts: inline adds 1.5 MB, cdn needs the network (%(default)s)",
)  # fmt: skip
_READERS = option("--jobs", type=positive, metavar="N", help="ranks to read at a time (one a core)")
_PROCESSES = option("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
_QUIET = flag("-q", "--quiet", help="print the report's path only")

ANALYZE = Command(
    help="Explain where the step time went: a run folder, a folder of traces, one trace, or a remote path.",
    examples=("traceops analyze profile/train", "traceops analyze traces/ -o report"),
    shown=("--output", "--select", "--format", "--fail-on", "--evidence", "--jobs", "--quiet"),
    options=(
        option(
            "path", nargs="+",
            help="profile/NAME, any folder with traces or summaries of ranks, one such file, or s3://…; a folder of "
            "runs (profile), a pattern or several paths give a report each and a table of all (runs.html)",
        ),
        option(
            "-o", "--output", metavar="DIR",
            help="report folder (reports/NAME: 'profile' in the path becomes 'reports'); of several runs a folder each",
        ),
        option(
            "--select", choices=("latest", "all"), default="latest",
            help="which capture windows to analyse (%(default)s)",
        ),
        _FORMAT,
        _PLOTLYJS,
        _FAIL_ON,
        flag("--strict", help="exit 3 if any file could not be read completely"),
        _READERS,
        option(
            "--executor", metavar="WHERE",
            help="where to read the ranks: dask://HOST:PORT, tls://… (dask) or mpi (processes of this machine)",
        ),
        option(
            "--no-cache", dest="cache", action="store_false",
            help="do not use the cache in $TRACEOPS_CACHE (~/.cache/traceops): parse every trace again",
        ),
        option(
            "--evidence", action="append", default=[], metavar="FILE",
            help="a file about the machine from outside the run folder: nvidia-smi topo -m, an NCCL log, doctor.json; "
            "repeatable",
        ),
        option(
            "--gpu", default="", metavar="NAME",
            help="the GPU that ran this, where the traces don't say: 'MI300X', 'H100'",
        ),
        flag("--hta", default=None, help="compute HTA's tables with HTA itself: the same numbers, slower"),
        option(
            "--no-hta", dest="hta", default=None, action="store_false",
            help="do not check the tables of traces up to 50 MB with HTA's own code at the end, where it is installed",
        ),
        flag("-v", "--verbose", help="show evidence, tables and what could not be checked too"),
        _QUIET,
    ),
)  # fmt: skip

COMPARE = Command(
    help="Say whether head is slower than base, how certain that is, and why; exit 1 on a regression.",
    examples=("traceops compare profile/main profile/pr", "traceops compare --base a1 a2 a3 --head b1 b2 b3"),
    shown=("--base", "--head", "--threshold", "--config", "--strict", "--force", "--output", "--format", "--quiet"),
    epilog="""BASE and HEAD: run folders, folders with traces, report.json files, or baseline:NAME.
A single folder: the one that `traceops run --repeat N --against REF` made.

exit codes: 0 no regression, 1 a regression, 2 wrong usage or not comparable, 3 unreadable input,
4 inconclusive (with --strict)""",
    options=(
        option("paths", nargs="*", metavar="BASE HEAD", help="one capture a side"),
        option("--base", nargs="+", metavar="PATH", default=[], help="several captures of base"),
        option("--head", nargs="+", metavar="PATH", default=[], help="several captures of head"),
        option(
            "--threshold", action="append", metavar="METRIC=PCT", default=[],
            help="fail if this metric gets worse by more than this; a number alone is for the step time; METRIC=off "
            "removes a metric from the gate; repeatable",
        ),
        option("--config", metavar="FILE", help="settings (traceops.toml, or [tool.traceops] in pyproject.toml)"),
        option("--store", metavar="DIR|URL", help="store in which to look up baseline:NAME (as for traceops baseline)"),
        option(
            "--last", type=positive, default=5, metavar="N",
            help="latest captures of baseline:NAME to use (%(default)s)",
        ),
        flag("--force", help="compare even what is not comparable"),
        flag("--strict", help="exit 4 if the result is inconclusive"),
        option("-o", "--output", metavar="DIR", help="folder for the files (reports/NAME of head)"),
        option(
            "--format", default="html,md,json", metavar="LIST",
            help="of html, md, json, junit, sarif, csv (%(default)s)",
        ),
        _PLOTLYJS,
        option("--name", default="", help="name of this comparison, for a pull request with several"),
        _PROCESSES,
        flag("-q", "--quiet", help="print the verdict's sentence only"),
    ),
)  # fmt: skip

_KEY = option("--key", metavar="PATTERN", help="only keys with this model name, slug, other word, or shell pattern")
_BASELINE_ACTIONS: dict[str, tuple[str, tuple[Option, ...]]] = {
    "save": ("Add captures to the store.", (
        option(
            "paths", nargs="+", metavar="PATH",
            help="profile/NAME, a folder of traces, a report folder or report.json",
        ),
        option("--branch", help="branch of the captures (as the run recorded it)"),
        option("--name", help="name in the key, instead of the model and its sizes"),
        option("--commit", help="commit of the trained code (as the run recorded it)"),
        flag("-q", "--quiet", help="print only where each entry is", default=argparse.SUPPRESS),
    )),
    "list": ("List the keys in the store, each with its number of entries and the latest one.", (_KEY,)),
    "show": ("Show the entries of a key.", (
        option("key", metavar="KEY", help="model name, slug, other word of the key, or pattern"),
        flag("--json", help="print JSON, with the place of each entry"),
    )),
    "prune": ("Delete old entries, and nothing else in the store.", (
        option("--keep", type=positive, metavar="N", help="keep the newest N of each key"),
        option("--older-than", type=float, metavar="DAYS", help="delete only entries captured more than DAYS ago"),
        _KEY,
        flag("--dry-run", help="show what would be deleted, delete nothing"),
    )),
    "history": ("Write a page with the trend of each key and where it changed for good.", (
        _KEY,
        option("-o", "--output", metavar="DIR", default="reports/history", help="folder (%(default)s)"),
        _PLOTLYJS,
    )),
}  # fmt: skip

_STORE = option(
    "--store", metavar="URL",
    help="folder, or s3://…, gs://… ($TRACEOPS_BASELINES, else baselines in the settings, else baselines/)",
)  # fmt: skip


def _add_baseline_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (text, options) in _BASELINE_ACTIONS.items():
        sub = actions.add_parser(name, help=text, description=text)
        add_options(sub, (_STORE, *options))
        add_common(sub, default=argparse.SUPPRESS)


BASELINE = Command(
    help="Keep captures as baselines in a folder or bucket, list them, and show their history.",
    examples=("traceops baseline save profile/main", "traceops baseline history --store s3://bucket/baselines"),
    extend=_add_baseline_actions,
)

DIAGNOSE = Command(
    help="Explain a hang or a crash from dumps, logs and stacks of any job: the rank, the cause, and who waits.",
    examples=("traceops diagnose profile/train", "traceops diagnose job.log"),
    options=(
        option(
            "path",
            help="profile/NAME, its evidence/, a folder or archive of dumps and logs of any job, one of them, or - "
            "(stdin)",
        ),
        option(
            "-o", "--output", metavar="DIR",
            help="report folder (reports/NAME: 'profile' in the path becomes 'reports')",
        ),
        _FORMAT,
        _FAIL_ON,
        _QUIET,
    ),
)  # fmt: skip


def _gpus(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers. Raises ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be numbers separated by commas: 0,1")
    return tuple(int(part) for part in parts)


DOCTOR = Command(
    help="Check this machine, test how its GPUs communicate, and find the settings that work.",
    examples=("traceops doctor", "traceops doctor --from nvidia-smi.txt nccl.log"),
    shown=("--from", "--cluster", "--output", "--no-tests", "--compute", "--quick", "--gpus", "--nproc", "--fail-on",
           "--json", "--verbose", "--quiet"),
    options=(
        option(
            "--from", dest="saved", nargs="+", metavar="FILE",
            help="judge saved files only: nvidia-smi, its -q, -L and topo -m, torch's collect_env, dmesg, "
            "nvidia-bug-report.log, NCCL_DEBUG=INFO logs, NCCL's XML, a doctor.json",
        ),
        flag(
            "--cluster",
            help="show what each partition has, by scontrol or kubectl; with --from: by saved output, sinfo's too",
        ),
        option("-o", "--output", default="reports/doctor", metavar="DIR", help="report folder (%(default)s)"),
        _FORMAT,
        flag("--json", help="print doctor.json, not the report"),
        _FAIL_ON,
        flag("-v", "--verbose", help="also show checks that passed"),
        flag("-q", "--quiet", help="no progress; print the report's path only"),
        Group("tests", (
            option("--no-tests", dest="tests", action="store_false", help="check only; start no test processes"),
            flag("--compute", help="measure what this GPU attains, for reports on kernels; nothing else (a minute)"),
            flag("--quick", help="test no pairs of GPUs, and only two message sizes"),
            option("--gpus", type=_gpus, metavar="LIST", help="test only these GPUs, by nvidia-smi's numbers: 0,1"),
            option("--device", choices=("auto", "cpu", "cuda"), default="auto", help="cpu: test gloo (%(default)s)"),
            option("--nproc", type=positive, metavar="N", help="ranks on the CPU (2), or GPUs to test (all)"),
            option(
                "--budget", type=positive, metavar="S",
                help="seconds for all tests (165); the first may take longer",
            ),
        )),
        Group("several nodes", (
            option("--nnodes", type=positive, metavar="N", help="nodes; start the same command on each"),
            option("--node-rank", type=int, metavar="N", help="number of this node; 0 on the node at --master-addr"),
            option("--master-addr", metavar="HOST", help="address of node 0"),
            option("--master-port", type=positive, metavar="PORT", help="a free port there (29500)"),
        ), "Under torchrun or srun --ntasks-per-node=1 the doctor tests all nodes. To start it by hand:"),
    ),
)  # fmt: skip

VIEW = Command(
    help="Write all ranks as one aligned timeline for ui.perfetto.dev.",
    examples=("traceops view profile/train", "traceops view profile/train --around TO-S001"),
    options=(
        option("path", help="profile/NAME, any folder with traces of ranks, one .json or .json.gz trace, or s3://…"),
        option(
            "-o", "--output", metavar="FILE",
            help="file to write (reports/NAME/timeline.pftrace.gz; a part has a name of its own, such as "
            "timeline.TO-S001.pftrace.gz). A name that ends in .gz is gzipped; one that ends "
            "in .json or .json.gz becomes Chrome's JSON",
        ),
        option("--ranks", type=numbers, metavar="LIST", help="ranks to show, such as 0,2-3 (all)"),
        option("--steps", type=numbers, metavar="LIST", help="steps to show, such as 4-5 (all)"),
        option(
            "--around", metavar="FINDING",
            help="show one finding, such as TO-S001: the ranks it names, a rank that waits, and its longest step",
        ),
        _PROCESSES,
        flag("-q", "--quiet", help="print the file's path only"),
    ),
)  # fmt: skip

OPEN = Command(
    help="Show a run's page in the browser, served on this machine alone; over ssh it prints the line to type.",
    examples=("traceops open profile/train", "traceops open reports/train --port 8000"),
    options=(
        option("path", help="a report folder, a page, a timeline, or profile/NAME, whose report is in reports/NAME"),
        option("--port", type=int, default=0, metavar="N", help="port to serve on (a free one)"),
        flag("--no-browser", help="print the address only"),
    ),
)

QUERY = Command(
    help="Query a run's timeline in SQL, with Perfetto's trace processor.",
    examples=('traceops query profile/train "select count(*) from slice"',
              'traceops query timeline.pftrace.gz "select name, dur from slice order by dur desc limit 5"'),
    options=(
        option("path", help="a timeline that `traceops view` wrote, or profile/NAME: then a temporary one is made"),
        option(
            "sql", help='such as "select name, count(*), sum(dur) from slice group by name order by 3 desc limit 10"',
        ),
        option("--ranks", type=numbers, metavar="LIST", help="ranks of a run, such as 0,2-3 (all)"),
        option("--steps", type=numbers, metavar="LIST", help="steps of a run, such as 4-5 (all)"),
        option("--around", metavar="FINDING", help="the ranks and the step of a finding, such as TO-S001"),
        _PROCESSES,
    ),
)  # fmt: skip

_NARROWING = {
    "ranks": option("--ranks", "--rank", type=numbers, metavar="LIST", help="only these ranks, such as 0,2-3"),
    "steps": option("--steps", "--step", type=numbers, metavar="LIST", help="only these steps, such as 4-5"),
    "group": option("--group", metavar="NAME", help="a group's name, a part of it, or its role: data, tensor, …"),
    "op": option("--op", metavar="NAME", help="an operation, or a part of its name"),
    "kind": option("--kind", metavar="KIND", help="compute, comm or memory"),
    "name": option("--name", metavar="TEXT", help="kernels with this in their name"),
    "severity": option("--severity", choices=("info", "warning", "error"), help="at least this severe"),
    "by": option("--by", metavar="COLUMN", help="sort by this column of --json, largest first"),
    "top": option("--top", "--worst", type=positive, metavar="N", help="the first N rows only"),
}
_OF_ANSWERS = (  # before the question or behind it
    flag("--json", help="JSON, with a unit in each name (docs/formats.md)"),
    _READERS,
    flag("-q", "--quiet", help="no progress"),
)

_ONE_RULE = option("rule", help="TO-S001")
_RULES = option("rule", nargs="?", help="a rule's id or its beginning: TO-S")


def _add_questions(parser: argparse.ArgumentParser) -> None:
    from traceops.answers.asked import QUESTIONS, SUMMARY

    asked: Any = parser.add_subparsers(dest="question", metavar="QUESTION", title="questions")
    parser.set_defaults(question=SUMMARY)
    for question in QUESTIONS:
        sub = asked.add_parser(question.name, help=question.about, description=question.about)
        for name in question.narrowed_by:
            if name == "rule":
                (_ONE_RULE if question.name == "finding" else _RULES).add_to(sub)
            else:
                _NARROWING[name].add_to(sub)
        for one in _OF_ANSWERS:
            one.add_to(sub, default=argparse.SUPPRESS)
        add_common(sub, default=argparse.SUPPRESS)


SHOW = Command(
    help="Answer one question about a run or report, in a few lines or as JSON.",
    examples=("traceops show profile/train", "traceops show profile/train findings --json"),
    options=(
        option("path", metavar="RUN", help="a report folder, a report.json, or what traceops analyze takes"),
        *_OF_ANSWERS,
    ),
    extend=_add_questions,
)

COMMANDS = {
    "analyze": ANALYZE,
    "compare": COMPARE,
    "baseline": BASELINE,
    "diagnose": DIAGNOSE,
    "doctor": DOCTOR,
    "view": VIEW,
    "open": OPEN,
    "query": QUERY,
    "show": SHOW,
    "explain": Command(
        help="Explain a rule in one screen: what it means, what to do, with an example.",
        examples=("traceops explain TO-S001", "traceops explain TO-I"),
        options=(
            option("rule", help="a rule's id (TO-S001), or its beginning (TO-S), which lists the rules"),
            flag("-v", "--verbose", help="show all conditions of the rule"),
        ),
    ),
    "demo": Command(
        help="Analyse a bundled run of four GPUs with a slow data loader: no GPU, no torch, no training.",
        examples=("traceops demo", "traceops demo -o /tmp/demo"),
        options=(option("-o", "--output", default="reports/demo", metavar="DIR", help="report folder (%(default)s)"),),
    ),
    "mcp": Command(
        help="Serve the answers of traceops show to an agent, over the Model Context Protocol (stdio).",
        examples=("traceops mcp", "claude mcp add traceops -- traceops mcp"),
    ),
    "completion": Command(
        help="Print a script that completes commands and options in your shell.",
        examples=('eval "$(traceops completion bash)"', 'eval "$(traceops completion zsh)"'),
        options=(option("shell", choices=("bash", "zsh", "fish")),),
    ),
}
