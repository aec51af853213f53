"""Makes the n-th call fail that some code makes, Python's or C's: every write, rename, dump, thread start and import.

Nothing is listed by hand. `counted` runs the work once and notes the calls as they come; `failing` runs it again and
lets one of them raise instead of being made. Three things are left out, because they cannot fail: that a lock is given
back, that a `with` is entered whose only purpose is to guard what is in it, and that `contained` is entered.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType


@dataclass(frozen=True)
class Call:
    """One call: where from, and what it calls."""

    file: str
    line: int
    function: str
    called: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} {self.function} → {self.called}"


@dataclass
class Faults:
    """Looks at calls made by code in files for which `ours` is true, below a frame that runs one of `inside`.

    by_chance: code that Python runs whenever it likes, such as what the garbage collector calls: no run has the same
    number of them, so they are not counted.
    """

    ours: Callable[[str], bool]
    inside: frozenset[CodeType]
    by_chance: frozenset[CodeType] = frozenset()
    calls: list[Call] = field(default_factory=list)
    _wanted: Call | None = None
    _before: int = 0
    _error: BaseException | None = None
    _known: list[Call] = field(default_factory=list)
    _is_ours: dict[str, bool] = field(default_factory=dict)
    raised: bool = False

    def __post_init__(self) -> None:
        self._inside_ids = frozenset(map(id, self.inside))
        self._by_chance_ids = frozenset(map(id, self.by_chance))

    @contextmanager
    def counted(self) -> Iterator[list[Call]]:
        """Note the calls that are made inside the block."""
        self.calls, self._wanted, self.raised = [], None, False
        with self._looking():
            yield self.calls
        self._known = list(self.calls)

    @contextmanager
    def failing(self, number: int, error: BaseException) -> Iterator[None]:
        """Let call `number` of the run that was counted raise `error`; what comes after it is left alone.

        It is found by what it is and how often that was called before it: two runs need not make equally many calls.
        """
        self._wanted, self._error, self.raised = self._known[number], error, False
        self._before = self._known[:number].count(self._wanted)
        self.calls = []
        with self._looking():
            yield

    @contextmanager
    def _looking(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _look(self, frame: FrameType, event: str, what: object) -> None:
        if event == "c_call":
            caller: FrameType | None = frame
        elif event == "call":
            caller = frame.f_back
        else:
            return
        if caller is None:
            return
        file = caller.f_code.co_filename
        ours = self._is_ours.get(file)
        if ours is None:
            ours = self._is_ours[file] = self.ours(file)
        if not ours or not self._is_inside(caller):
            return
        if event == "call" and id(frame.f_code) in self._by_chance_ids:
            return
        code = frame.f_code  # co_qualname: from Python 3.11
        name = getattr(what, "__qualname__", "") if event == "c_call" else getattr(code, "co_qualname", code.co_name)
        if name.startswith(_GUARDS) or name == "lock.__exit__":
            return
        call = Call(caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name, name)
        self.calls.append(call)
        if call != self._wanted or self.raised or self._error is None:
            return
        if self._before:
            self._before -= 1
        else:
            self.raised = True
            raise self._error

    def _is_inside(self, frame: FrameType | None) -> bool:
        while frame is not None:
            code = id(frame.f_code)  # to hash it would go through its constants
            if code in self._by_chance_ids:
                return False
            if code in self._inside_ids:
                return True
            frame = frame.f_back
        return False


_GUARDS = (
    "contextmanager.",
    "_GeneratorContextManager.",
    "contained",
)  # what guards is entered and left outside of what it guards
