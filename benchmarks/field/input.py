"""One public input of docs/field.md: where it is from, what is true of it, and what may be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Kinds of input.
ONE = "one rank, NVIDIA"
SEVERAL = "several ranks"
AMD = "AMD GPUs"
OTHER = "other devices"
NO_GPU = "no GPU activity"
INFERENCE = "inference"
ALIEN = "not torch's"
MATRIX = "GPU matrix"
XML = "topology XML"
GRAPH = "graph XML"
NCCL = "NCCL log"
TESTS = "nccl-tests"
RECORDER = "flight recorder"
WATCHDOG = "watchdog log"
CRASH = "crash log"
STACKS = "stacks"
FINE = "no failure"
TEXT = "other text"
OTHER_LOG = "log of other devices"
JAX = "log of JAX or TensorFlow"
SNAPSHOT = "memory snapshot"

# What verdicts have in common.
STARVES = r"waits? for (its|their) hosts? to launch"
INPUT = r"waits? for input"
OPEN = r"Not judged"
CLEAN = r"Nothing serious found"
LOST = r"the trace holds none of them"
NOTHING = r"no operator, no kernel and no step"
NO_EVENTS = r'there is no "traceEvents" list'
CHROME_TRACE = r"it is a Chrome trace"
UNTOLD = r"messages? of trouble, but no cause is told"
NO_EVIDENCE = r"holds no evidence of a hang"
# No step is marked, so none may be spoken of.
UNMARKED = r"a step (takes|would take)|each [\d.,]+ m?s step"


@dataclass(frozen=True)
class Input:
    """A file, or several of one job, that somebody published.

    origin: `owner/repo@commit` with `paths` in it; or `owner/repo#number`, an issue whose text was saved as `paths`.
    sha256: of the file, of several files one after the other by name.
    truth: found before traceops was run on it. right, abstains: patterns of the verdict's sentence (of the fabric: of
    all that is printed), spaces made one. never: a pattern of what may stand nowhere.
    held: set aside while the working half was judged and mended. day: 1 of the first inputs; 2 of those found later
    and looked at once; 3, 4 and 5 of a third, a fourth and a fifth search, 6 to 15 of samples by rules, half of
    each set aside. root: a pattern of what the first sentence should name, where this is judged.
    """

    name: str
    kind: str
    command: Literal["analyze", "diagnose", "doctor", "memory"]
    origin: str
    paths: str | tuple[str, ...]
    sha256: str
    truth: str
    right: str = ""
    abstains: str = ""
    never: str = ""
    held: bool = False
    day: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] = 1
    root: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths, also of one."""
        return (self.paths,) if isinstance(self.paths, str) else self.paths
