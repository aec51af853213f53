"""The wheel and the source distribution carry what the installed package opens."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import traceops

ROOT = Path(__file__).parents[1]
BUNDLED = {"runners": "runners", "templates": "templates", "demo": "tests/data/slow_loader4"}
SOURCES = ("traceops", *BUNDLED.values(), "pyproject.toml", "setup.py", "README.md", "LICENSE")
METADATA = ".dist-info/"
COMPILED = ".so"


def _files(folder: Path) -> set[str]:
    """Paths under `folder`, without byte code."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout: building leaves build/ and egg-info behind, which the next wheel would pick up."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("building needs setuptools 77")
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, folder / name)
    # as after `python runners/train.py` in a checkout
    for name in ("runners", "templates"):
        (folder / name / "__pycache__").mkdir()
        (folder / name / "__pycache__" / "left.cpython-311.pyc").touch()
    return folder


def _build(kind: str, source: Path, into: Path, **environment: str) -> Path:
    """Build without isolation, which needs no network, and without optimising the C code, which takes longest."""
    program = f"from setuptools.build_meta import build_{kind} as build; import sys; build(sys.argv[1])"
    command = [sys.executable, "-c", program, into]
    env = os.environ | {"CFLAGS": "-O0"} | environment
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return _build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    return _build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _expected() -> set[str]:
    """What a wheel has of this checkout: all files of the package but C, and those of the bundled folders."""
    package = {file for file in _files(ROOT / "traceops") if not file.endswith((".c", ".h", COMPILED))}
    data = {f"_bundled/{name}/{file}" for name, folder in BUNDLED.items() for file in _files(ROOT / folder)}
    return {f"traceops/{file}" for file in package | data}


def test_the_wheel_has_the_package_and_its_data_and_nothing_else(unpacked):
    files = {file for file in _files(unpacked) if METADATA not in file}
    assert {file for file in files if not file.endswith(COMPILED)} == _expected()
    assert {"traceops/py.typed", "traceops/_bundled/runners/train.py"} <= files
    assert any(file.startswith("traceops/_bundled/templates/") for file in files)


def test_a_wheel_made_from_the_source_distribution_is_the_same(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.12 and 3.13 warn without one
        archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    into = tmp_path / "wheel"
    into.mkdir()
    with zipfile.ZipFile(_build("wheel", source, into)) as again, zipfile.ZipFile(wheel) as first:
        assert _contents(again) == _contents(first)


def _contents(wheel: zipfile.ZipFile) -> set[tuple[str, int]]:
    """Files and their checksums; compiled code holds the path that it was compiled in."""
    infos = [info for info in wheel.infolist() if METADATA not in info.filename]
    return {(info.filename, 0 if info.filename.endswith(COMPILED) else info.CRC) for info in infos}


def test_with_a_compiler_the_wheel_has_the_compiled_scanner(unpacked):
    if not any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang")):
        pytest.skip("no C compiler")
    assert _native_columns(unpacked) != "None"


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_built_all_the_same(source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    (tmp_path / "wheel").mkdir()
    with zipfile.ZipFile(_build("wheel", copy, tmp_path / "wheel", CC="no-such-compiler")) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert not list((tmp_path / "unpacked").rglob("*" + COMPILED))
    assert _native_columns(tmp_path / "unpacked") == "None"


def _native_columns(unpacked: Path) -> str:
    program = "from traceops.traces.event_columns import native_columns; print(native_columns(False))"
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=unpacked, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_metadata_names_the_command_the_licence_and_no_torch_by_default(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    assert "traceops = traceops.cli:main" in (info / "entry_points.txt").read_text()
    assert (info / "licenses" / "LICENSE").is_file()
    assert (info / "licenses" / "templates" / "plotly" / "LICENSE").is_file()
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    requires = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    torch = [line for line in requires if line.split()[1].startswith("torch")]
    assert torch and all("extra ==" in line for line in torch)
    assert "Name: traceops-torch" in metadata.splitlines()


def test_hta_and_what_it_needs_come_with_the_extra_only(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    requires = [
        line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist")
    ]
    named = {line: re.match(r"[\w.-]+", line)[0] for line in requires}
    always = {name for line, name in named.items() if "extra ==" not in line}
    assert always == {"isal", "jinja2", "msgspec", "numpy", "psutil", "rich", "tomli"}
    for extra, distribution in (("hta", "HolisticTraceAnalysis"), ("traceinsight", "traceinsight")):
        brought = {named[line]: line for line in requires if line.endswith(f"extra == {extra!r}".replace("'", '"'))}
        assert brought.keys() == {distribution, "pandas", "psutil", "PyYAML"}
        assert "<3" in brought["pandas"]


def test_the_wheel_finds_its_own_data_from_another_folder(unpacked, tmp_path):
    program = (
        "from traceops.core.installation import bundled\n"
        "for parts in (('runners', 'train.py'), ('templates',)): print(bundled(*parts))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    data = unpacked / "traceops" / "_bundled"
    assert done.stdout.split() == [str(data / "runners" / "train.py"), str(data / "templates")]


# What ``import traceops`` shows: completion in a notebook asks for it.


def test_what_is_loaded_on_first_use_is_listed():
    assert {"analyze", "capture", "Schedule", "__version__"} <= set(dir(traceops))
    assert all(hasattr(traceops, name) for name in dir(traceops) if name not in ("capture", "Schedule"))
