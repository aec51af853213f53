"""Lines of a script that stand in a block without gradients, and how the report is told of them."""

import json
import linecache
import textwrap
import threading

import pytest

from traceops.capture.observing.stacks import Stacks, without_gradients
from traceops.traces.observed import _read_lines

SCRIPT = """
for batch in loader:  # trains
    loss = model(batch)  # trains
    if step % 10 == 0:
        with torch.no_grad():  # header
            # a comment
            for batch in test:
                total += model(  # without
                    batch,  # without
                )

                with torch.enable_grad():
                    probe(model)  # trains
        model.train()  # trains
    with open("log") as file, torch.inference_mode():
        model(batch)  # without
    with torch.inference_mode(mode=False):
        model(batch)  # trains
    with torch.set_grad_enabled(False):
        model(batch)  # without
    with torch.set_grad_enabled(training):
        model(batch)  # trains

with no_grad():
    model(batch)  # without

    def later():
        model(batch)  # trains

class Net:
    def forward(self):
        with no_grad(): teacher(x)
        return x  # trains
"""


def test_each_line_of_a_script():
    lines = SCRIPT.splitlines(keepends=True)
    for number, text in enumerate(lines, 1):
        for said, expected in (("# without", True), ("# trains", False), ("# header", False)):
            if text.rstrip().endswith(said):
                assert without_gradients(lines, number) == expected, text


@pytest.mark.parametrize("line", [-1, 0, 10_000])
def test_a_line_that_is_not_there(line):
    assert not without_gradients(SCRIPT.splitlines(), line)
    assert not without_gradients([], line)


def test_tabs_are_as_wide_as_python_has_them():
    assert without_gradients(["with torch.no_grad():", "\tx = 1", "        model(x)"], 3)


def test_a_look_tells_of_the_line_that_it_fell_on(tmp_path):
    """The reader joins what is told to the frames, whichever batch of lines they came in."""
    path = tmp_path / "train.py"
    source = textwrap.dedent(
        """\
        class no_grad:
            def __enter__(self): pass
            def __exit__(self, *error): pass
        look()
        with no_grad():
            look()
        """
    )
    path.write_text(source)
    linecache.clearcache()
    stacks, told = Stacks(threading.get_ident()), []

    def look():
        stacks.sample(0, 10)
        told.extend(stacks.take())

    exec(compile(source, str(path), "exec"), {"look": look})
    read = _read_lines("\n".join(json.dumps(line) for line in told).encode())
    own = [(frame.line, frame.no_grad) for frame in read["frames"] if frame.file == str(path)]
    assert own == [(4, False), (6, True)]
    assert sum(frame.no_grad for frame in read["frames"]) == 1
