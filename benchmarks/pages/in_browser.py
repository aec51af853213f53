"""Opens the pages of many reports in Chromium: bytes, what they say on the console, what they ask for, links, times.

    python -m benchmarks.pages.in_browser                       # makes about twenty reports in a temporary folder
    python -m benchmarks.pages.in_browser --keep OUT            # and leaves them there
    python -m benchmarks.pages.in_browser --axe axe.min.js      # counts axe-core's violations too, light and dark
    python -m benchmarks.pages.in_browser --pages A.html B.html # these pages instead
    python -m benchmarks.pages.in_browser --keep OUT --shots OUT/shots

Needs playwright and Chromium; axe.min.js is in axe-core (npm) and axe-playwright-python (PyPI).

'proof' is the pixel at which the aligned steps begin on a window of 1280 × 800, 'ms' the
browser's own time until the page can be used (domContentLoaded), which means something on a quiet machine only. 'CPU
ms' is what the page's thread worked until it was loaded, the least of three times: load on the machine changes it
little.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from benchmarks import ROOT

for folder in ("tests", "tests/render", "tests/runs"):
    sys.path.insert(0, str(ROOT / folder))

DATA = ROOT / "tests" / "data"
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
_COLUMNS = (
    "page", "kB", "console", "requests", "ms", "CPU ms", "elements", "height", "phone too wide", "proof", "links",
    "broken", "CSV", "axe",
)  # fmt: skip
_RECORDED = {
    "gloo, 2 ranks": "straggler_gloo2", "tensor parallel, gloo": "tensor_parallel_gloo2",
    "pipeline, gloo": "pipeline_uneven_gloo2", "4 ranks, slow loader": "slow_loader4", "4 ranks, DDP": "ddp4",
    "4 ranks, FSDP2": "fsdp2_4", "4 ranks, .item()": "item_sync4", "4 ranks, one late step": "late_step4",
    "HSDP, slow rank": "slow_hsdp4", "pipeline, 4 stages": "pipeline_interleaved4", "experts": "expert_skew2",
    "decode in CUDA graphs": "decode_graph2",
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a browser shows of one page."""

    size: int
    said: list[str]
    asked: list[str]
    ms: float
    cpu_ms: float
    elements: int
    height: int
    too_wide: int
    proof: int | None
    links: int
    broken: list[str]
    violations: list[str] | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the reports")
    parser.add_argument("--pages", type=Path, nargs="+", help="pages that are there already")
    parser.add_argument("--axe", type=Path, help="axe-core's axe.min.js")
    parser.add_argument("--shots", type=Path, help="folder for pictures of the first screens")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = args.keep or Path(temporary)
        pages = {f"{page.parent.name}/{page.name}": page for page in args.pages} if args.pages else dict(_made(out))
        faults = _look(pages, args.axe, args.shots)
    print(f"\n{len(pages)} pages, {faults} faults")
    return 1 if faults else 0


def _made(out: Path) -> Iterator[tuple[str, Path]]:
    """(name, page) of each report, made in `out`."""
    from traceops.pipeline.analyze import analyze
    from traceops.render.files import write_report

    for number, (name, make) in enumerate(_makers(out / "input").items()):
        folder = out / f"{number:02}_{''.join(c if c.isalnum() else '_' for c in name)}"
        made = make(folder)
        if isinstance(made, Path):
            write_report(analyze(made), folder)
            made = None
        pages = sorted(folder.glob("*.html"))
        for page in pages:
            yield (name if len(pages) == 1 else f"{name}, {page.name}"), page


def _recorded(source: str, folder: Path) -> Path:
    return DATA / source


def _makers(inputs: Path) -> dict[str, Callable[[Path], Path | None]]:
    """By name: gives traces to analyse, or writes a page itself."""
    made: dict[str, Callable[[Path], Path | None]] = {
        name: partial(_recorded, source) for name, source in _RECORDED.items()
    }
    made["single trace"] = lambda folder: DATA / "slow_loader4" / "rank_0.pt.trace.json.gz"
    made["8 ranks, one slow"] = lambda folder: _generated(inputs / "8", 8)
    made["8 ranks, clean"] = lambda folder: _generated(inputs / "clean8", 8, late=False)
    made["mesh of 16"] = lambda folder: _mesh(inputs / "mesh")
    made["256 ranks, one slow"] = lambda folder: _generated(inputs / "256", 256)
    made["256 ranks, 64 slow"] = lambda folder: _copied(inputs / "copied", 256)
    made["1,024 ranks, one slow"] = lambda folder: _generated(inputs / "1024", 1024)
    made["256 ranks, 8 slow hosts"] = lambda folder: _slow_hosts(inputs / "hosts")
    made |= {"hang": _hang, "crash": _crash, "compare": _compare, "history": _history, "doctor": _doctor}
    made |= {"several runs": _several, "sweep": _sweep, "scale": _scale}
    made["hostile names"] = _hostile
    return made


def _generated(folder: Path, world: int, *, late: bool = True) -> Path:
    from generated_run import Size, SlowCompute, TraceStyle, ddp, simulate, write_traces

    slow = [SlowCompute(rank=world // 3, factor=1.6)] if late else []
    size = Size(kernels=8, kernel_us=400.0)
    run = simulate(ddp(layers=4, steps=4, size=size, sync=True), world, slow, ranks_per_host=8)
    write_traces(run, folder, TraceStyle(compressed=True))
    return folder


def _slow_hosts(folder: Path) -> Path:
    """64 of 256 ranks alike, all of eight hosts."""
    from generated_run import Size, SlowCompute, TraceStyle, ddp, simulate, write_traces

    made = ddp(layers=4, steps=4, size=Size(kernels=8, kernel_us=400.0), sync=True)
    run = simulate(made, 256, [SlowCompute(rank, factor=1.6) for rank in range(64, 128)], ranks_per_host=8)
    write_traces(run, folder, TraceStyle(compressed=True))
    return folder


def _mesh(folder: Path) -> Path:
    from generated_run import Mesh, SlowCompute, TraceStyle, simulate, write_traces

    mesh = Mesh(data=4, tensor=2, pipeline=2, layers=1)
    write_traces(
        simulate(mesh.program(), mesh.world, [SlowCompute(rank=5, factor=2.0)]), folder, TraceStyle(compressed=True)
    )
    return folder


def _copied(folder: Path, world: int) -> Path:
    from benchmarks.speed.make_traces import make_ranks

    make_ranks(DATA / "slow_loader4", folder, world)
    return folder


def _hang(folder: Path) -> None:
    with tarfile.open(DATA / "hangs" / "hang_skip.tar.gz") as archive:
        archive.extractall(folder / "run", filter="data")
    _command("diagnose", str(folder / "run"), "-o", str(folder))


def _crash(folder: Path) -> None:
    log = DATA / "crash_logs" / "oom_larger_than_gpu.txt"
    _command("diagnose", str(log), "-o", str(folder))


def _compare(folder: Path) -> None:
    sides = []
    for name in ("ddp", "no_p2p"):
        side = folder / "sides" / name / "report.json"
        side.parent.mkdir(parents=True)
        side.write_bytes(gzip.decompress((DATA / "reports" / f"{name}.report.gz").read_bytes()))
        sides.append(str(side))
    _command("compare", *sides, "-o", str(folder), "-q")


def _command(*arguments: str) -> None:
    from traceops.cli import main as traceops

    with contextlib.redirect_stdout(io.StringIO()):
        traceops(list(arguments))


def _history(folder: Path) -> None:
    from sample_captures import with_level

    from traceops.baseline.history import histories, samples_of
    from traceops.baseline.store import Problem, save, scan
    from traceops.render.history.html import write_history

    store, problems = str(folder / "store"), list[Problem]()
    for report in with_level([50.0] * 15 + [55.0] * 10):
        save(store, report, name="gpt", source="profile/gpt")
    write_history(histories(samples_of(scan(store, None, problems), problems)), problems, store, folder)


def _doctor(folder: Path) -> None:
    from sample_doctor import healthy

    from traceops.render.doctor.html import render_doctor_html

    folder.mkdir(parents=True)
    (folder / "doctor.html").write_bytes(render_doctor_html(healthy()))


def _several(folder: Path) -> None:
    from run_folders import failed_run, run_of

    for name, ms in (("small", 90.0), ("large", 120.0)):
        run_of(folder / "profile" / name, status="finished", training={"samples_per_step": 8}, unprofiled_step_ms=ms)
    failed_run(folder / "profile" / "broken")
    with _inside(folder):
        _command("analyze", "profile", "-q")
    _together(folder, folder / "reports")


def _sweep(folder: Path) -> None:
    """With recorded traces in place of trainings; one of the combinations fails."""
    from run_folders import failed_run, run_of

    def train(decided: Any) -> int:
        plan = decided.plan
        workers = plan.trains[plan.trains.index("--workers") + 1]
        shutil.rmtree(plan.out, ignore_errors=True)
        if workers == "4":
            failed_run(plan.out)
            return 1
        told = {"training": {"samples_per_step": 8}, "unprofiled_step_ms": {"0": 80.0, "2": 40.0}[workers]}
        run_of(plan.out, status="finished", **told)
        return 0

    folder.mkdir(parents=True)
    with (
        _inside(folder),
        mock.patch("traceops.cli.run.gpu_count", lambda: 0),
        mock.patch("traceops.cli.sweep._train", train),
    ):
        _command("sweep", "--vary", "workers=0,2,4", "--nproc", "2", "--quick", "--repeat", "2", "--name", "s")
    _together(folder, folder / "reports" / "s")


def _scale(folder: Path) -> None:
    from run_folders import failed_run, run_of

    told = {"config": {"model": "gpt"}}
    run_of(folder / "profile" / "n2", training={**told, "samples_per_step": 16}, unprofiled_step_ms=90.0)
    run_of(
        folder / "profile" / "n4", "ddp4", training={**told, "samples_per_step": 32}, world_size=4,
        unprofiled_step_ms=95.0,
    )  # fmt: skip
    failed_run(folder / "profile" / "n8")
    with _inside(folder), mock.patch("traceops.runs.scale._device", lambda capture: "GPU"):
        _command("scale", "profile", "--price", "2.5")
    _together(folder, folder / "reports" / "scale")


def _together(folder: Path, written: Path) -> None:
    """What a command wrote, in the folder where its page is looked for."""
    for path in written.iterdir():
        shutil.move(path, folder / path.name)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _hostile(folder: Path) -> None:
    from sample_report import sample_report

    from traceops.render.files import write_report

    write_report(sample_report(8), folder)


def _look(pages: dict[str, Path], axe: Path | None, shots: Path | None) -> int:
    """Print a row a page; how many of them have a fault."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    rules = axe.read_text(encoding="utf-8") if axe else ""
    faults = 0
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        for name, page in pages.items():
            seen = _seen(browser, page, rules, shots)
            tables = _wrong_tables(page.parent)
            wrong = [*seen.said, *seen.asked, *seen.broken, *tables, *(seen.violations or ())]
            faults += bool(wrong or seen.too_wide)
            cells = (
                name, f"{seen.size / 1000:,.0f}", len(seen.said), len(seen.asked), f"{seen.ms:.0f}",
                f"{seen.cpu_ms:.0f}",
                f"{seen.elements:,}", f"{seen.height:,}", seen.too_wide, "" if seen.proof is None else seen.proof,
                seen.links, len(seen.broken), len(tables), "" if seen.violations is None else len(seen.violations),
            )  # fmt: skip
            print(f"| {' | '.join(map(str, cells))} |")
            for one in wrong[:5]:
                print(f"    {one}")
        browser.close()
    return faults


def _seen(browser: Any, page: Path, rules: str, shots: Path | None) -> Seen:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, bypass_csp=bool(rules))
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    address = page.resolve().as_uri()
    tab.goto(address)
    tab.wait_for_load_state("load")
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=shots / f"{page.parent.name}.png")
    measured = tab.evaluate(
        """() => {
          document.querySelectorAll("section").forEach(one => one.style.contentVisibility = "visible");
          const timing = performance.getEntriesByType("navigation")[0];
          const proof = document.getElementById("aligned");
          const ids = new Set([...document.querySelectorAll("[id]")].map(e => e.id));
          const links = [...document.querySelectorAll("a[href]")].map(a => a.getAttribute("href"));
          return {
            ms: timing.domContentLoadedEventEnd, height: document.documentElement.scrollHeight,
            elements: document.querySelectorAll("*").length, links,
            proof: proof ? Math.round(proof.getBoundingClientRect().top + scrollY) : null,
            broken: links.filter(link => link.startsWith("#") && !ids.has(decodeURIComponent(link.slice(1)))),
          };
        }"""
    )
    files = [link for link in measured["links"] if not link.startswith("#")]
    broken = [*measured["broken"], *(link for link in files if not _is_there(page.parent, link))]
    tab.set_viewport_size({"width": 390, "height": 844})
    root = "document.documentElement"
    too_wide = tab.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
    violations = _violations(browser, address, rules) if rules else None
    context.close()
    outside = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    return Seen(
        page.stat().st_size, said, outside, measured["ms"], _cpu_ms(browser, address), measured["elements"],
        measured["height"], too_wide, measured["proof"], len(measured["links"]), broken, violations,
    )  # fmt: skip


def _cpu_ms(browser: Any, address: str) -> float:
    """What the page's main thread worked until it was loaded, ms: parsing, style, layout, scripts, painting."""
    spent: list[float] = []
    for _ in range(3):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        tab = context.new_page()
        session = context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.goto(address)
        tab.wait_for_load_state("load")
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        spent.append(1e3 * metrics["TaskDuration"])
        context.close()
    return min(spent)


def _is_there(folder: Path, link: str) -> bool:
    """Whether a link leads to a file beside the page, or to the web, which is not asked."""
    parts = urlsplit(link)
    return bool(parts.scheme) or (folder / unquote(parts.path)).exists()


def _violations(browser: Any, address: str, rules: str) -> list[str]:
    found = []
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme, bypass_csp=True)
        tab = context.new_page()
        tab.goto(address)
        tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        tab.evaluate("document.querySelectorAll('section').forEach(one => one.style.contentVisibility = 'visible')")
        tab.evaluate(rules)
        result = tab.evaluate("axe.run()")
        found += [f"{scheme}: {one['id']} ({len(one['nodes'])})" for one in result["violations"]]
        context.close()
    return found


def _wrong_tables(folder: Path) -> list[str]:
    """CSV files beside a page whose rows do not all have the header's cells."""
    wrong = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            wrong.append(f"{path.name}: rows are not of one length")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
