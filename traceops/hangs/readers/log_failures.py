"""Lines that say in plain words that something failed: shown where nothing else in a log tells of trouble."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

_SEARCHED = 400
_MOST = 8
# Who may fail, and how, in one clause: 'Worker 3 died', 'the job has failed', 'Trial t1 failed'.
_WHO = (
    r"\b(?i:workers?|ranks?|process(?:es)?|pods?|containers?|jobs?|tasks?|actors?|replicas?|nodes?|executors?|trainers?"
    r"|launchers?|servers?|engines?|schedulers?|requests?|training|trials?|steps?|commands?|scripts?|subprocess|child)\b"
)
_FAILS = (
    r"\b(?:(?:has|have|had|was|were|is|are|been|got|unexpectedly|suddenly) ){0,3}"
    r"(?:failed|crashed|died|aborted|dead|hung|evicted|preempted|unreachable|killed|cancell?ed|timed out"
    r"|terminated unexpectedly)\b"
)
_CLAUSE = re.compile(
    rf"{_WHO}(?: ['\"][\w.-]{{1,60}}['\"])?[^.;,:!?|=\"']{{0,40}}?[ ]{_FAILS}"
    r"(?! ?[:=] ?(?:0\b|[Ff]alse|[Nn]one)|[- ]over\b)"
)
# A message begins with it, or nearly so ('the job', 'All requests'); prose that a model wrote seldom does.
_CLAUSE_BEGINS = re.compile(r"[.;:!?|>)\]\"-] ?")
_BARE_WORD = re.compile(r"[^\W\d_]{2,40}")
# What has not happened, or only may: 'if a worker died', 'restart on failed', '0 tasks failed', 'has not failed'.
_ONLY_SAID = re.compile(
    r"\b(?i:if|when|whenever|unless|case|should|would|could|may|might|can|whether|until|after|never|not|no|none"
    r"|without|avoids?|prevents?|handles?|detects?|ignor\w{1,4}|retr(?:y|ies|ying)|previously|max\w{0,4}|\w{1,10}n't)\b|(?:^|(?<!ank)(?<!orker)(?<!ode)(?<!ask)(?<!PU)\s)0\s"
)
# The level of a line that is not severe says that nothing failed for good.
_MILD = re.compile(
    r"\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?)\b|\b(?:level|severity)\W{1,4}(?:debug|info|warn)|^\[?[IW]\d{3,4} |Warning: "
)
_EXIT = re.compile(
    r"\b(?i:exit(?:ed|s)?|returned|finished|terminated|completed)[ _-]?"
    r"(?i:(?:with|an?|non-?zero|abnormal|exit|return|status|error)[ _-]){0,4}"
    r"(?i:code|status)(?: ?[:=]| is| of)?\s{0,12}\(?(?P<code>-?\d{1,5})\b(?![.,]?\d|[%/])"
)
_ENDS_WELL = ("0", "-0", "130", "-2")  # 2: somebody pressed Ctrl-C
# Of a benchmark, a test suite, an operator or a search: how many failed, or that none was well.
_COUNTED = re.compile(
    r"\b[Ff]ailed (?:requests?|replicas?|tests?|tasks?|pods?|jobs?|ranks?|workers?)\s{0,40}[|:=]\s{0,40}[1-9]\d{0,8}\b"
    r"|\b[1-9]\d{0,8} (?:\w{1,20} )?(?:requests?|replicas?|replica\(s\)|tests?|tasks?|pods?|jobs?|ranks?|workers?)"
    r" (?:have |has )?failed\b|^=+ (?:\d{1,6} \w{1,12}, )?[1-9]\d{0,5} failed\b|\bfailed=[1-9]\d{0,5}, Replicas="
    r"|\bSucc(?:essful|eed|ess) requests?\s{0,40}[|:=]\s{0,40}0(?![.\d])"
    # Ray Tune: 'Number of trials: 7/7 (1 ERROR, 6 RUNNING)', 'Trial status: 3 TERMINATED | 1 ERROR'.
    r"|\b(?:Number of trials|Trial status): .{0,80}?\b[1-9]\d{0,8} ERROR\b|\bNumber of errored trials: [1-9]"
)
_NAMED = re.compile(
    r"^(?:\[gw\d{1,4}\] )?(?:\[ {0,2}\d{1,3}%\] )?FAILED \S{1,300}::\S|\bnode down: "  # pytest, of workers too
    r"|^\S{1,300}\.\w{1,60} FAILED\s{0,8}$"  # the head of torchrun's report
    # torchrun ends the others; Hydra of MPICH, Intel and MVAPICH; Python's launcher on Windows.
    r"|\bSending process \d{1,10} closing signal SIG(?:TERM|KILL)\b"
    r"|\bBAD TERMINATION OF ONE OF YOUR\b|\bfailed to create process\b"
    # systemd; Slurm's scontrol and sacct.
    r"|\bMain process exited, code=(?:killed|dumped|exited, status=[1-9])"
    r"|\bJobState=(?:FAILED|TIMEOUT|OUT_OF_MEMORY|NODE_FAIL|PREEMPTED|BOOT_FAIL|DEADLINE)\b"
    r"|\s(?:FAILED|TIMEOUT|NODE_FAIL|OUT_OF_ME\S{0,4})\s{1,20}\d{1,3}:\d{1,3}\s{0,40}$"
    # Kubernetes, of a pod: a condition, or a row of kubectl get pods.
    r"|\b(?:CrashLoopBackOff|RunContainerError|CreateContainer(?:Config)?Error"
    r"|[Bb]ack-?off \d{0,4}\w{0,4} ?restarting failed)\b"
    r"|\s\d{1,3}/\d{1,3}\s{1,20}(?:\w{1,8}:)?(?:Error|StartError|Evicted|Failed|ContainerStatusUnknown)\s{1,20}\d"
)
# Programs that did not start or ended, in words of their own: MPI, C++, CUDA, Docker, ssh, the linker, Java.
_ENDED = re.compile(
    r"\bMPI_ABORT was invoked on rank |\bPrimary job  terminated normally, but "
    r"|\*\*\* (?:Process received signal \*\*\*|Aborted at \d)|\bpeer process has unexpectedly disconnected\b"
    r"|\bHorovod has b(?:een shut down\b|$)|\bUser function raise error: "
    r"|\bOP_REQUIRES failed at \S{1,80} : (?:Unknown|Aborted|Internal|Unavailable|Resource exhausted): "
    r"|\bC\+\+ exception with desc"
    r"|\bINTERNAL ASSERT FAILED\b|\bCheck failed: |\bnot enough slots available\b|\bunable to reliably start\b"
    r"|\bFailed to initialize NVML\b|\bTest (?:NCCL )?failure \S{1,60}:\d|\bOCI runtime \w{1,12} failed\b"
    r"|\bexecutable file not found\b|\b[Ee]xec format error\b|\berror while loading shared libraries: "
    r"|^Host key verification failed\b|\bPermission denied \(publickey|\bError occurred during initialization of VM\b"
)
# A few words that end in 'error': '!!!! kernel execution error. (m: 256, error: 13)'.
_ERROR = re.compile(
    r"\W{0,8}(?!.{0,60}\b(?i:mean|squared?|absolute|relative|test|valid\w*|train\w*|rounding|word|rate|no|any|each)\b)"
    r"(?:[A-Za-z][\w-]{0,30} ){1,4}(?i:error|failure)[.!]\s{0,2}(?:\(|$)"
)
# What somebody wrote or a model said, in a chat.
_CHAT = re.compile(r"\W{0,4}(?i:user|human|assistant|system|prompt|question|answer|instruction|response)\W{0,4}: ")
# At a log's end only, where the program did not go on: 'bash: torchrun: command not found', 'python: can't open file'.
_LATE = re.compile(
    r"-?(?:[\w./+-]{0,100}/)?(?:\w{0,4}sh|env|nohup|exec|python[\d.]{0,5}|torchrun|accelerate|deepspeed|srun|mpirun|[\w-]{1,60}\.sh)"
    r"(?:\[\d{1,10}\])?: .{0,200}?\b(?:not found|No such file or directory|Permission denied|[Cc]annot (?:execute|open)"
    r"|can't open file|No module named|[Ff]ailed to run|Operation not permitted)\b"
    r"|[a-z./][\w./+-]{0,100}: .{0,200}?\b(?:Job exceeds|[Cc]onnection (?:refused|timed out|closed))"
    r"|Terminated\s{0,4}$|[\w.]{0,100}(?:Error|Exception)\s{0,4}$|Connection to \S{1,200} closed by remote host"
    r"|(?i:ran out of memory|out of memory|timed out waiting for )"
)
_GOES_ON = re.compile(r"\b(?:instead|[Rr]etry|[Ii]gnor|[Ss]kip|[Ff]all(?:ing)? ?back)")
_AT_END = 10  # lines
# What passes: a pod that waits for a node or an image, until it starts.
_WAITS = re.compile(r"\b(?:FailedScheduling|FailedMount|ErrImagePull|ImagePullBackOff|Insufficient nvidia\.com/gpu)\b")
_STARTS = re.compile(r"\bSuccessfully (?:assigned|pulled)\b|\bStarted container\b")
# Torch's store at rank 0 is gone: nothing, where the program had come to its end.
_STORE = re.compile(r"\[c10d\] (?:recv|send)\w{1,24} failed on SocketImpl\(")
_DONE = re.compile(
    r"destroy_process_group\(\) was not called|\b100%\||\b(\d{2,9})/\1\b"
    r"|\b(?i:shutting down|shutdown complete|exiting|all done)\b"
    r"|\b(?i:train(?:ing)?|run|job|benchmark|evaluation|test(?:ing)?|script)\b.{0,30}\b(?i:completed?|finished|done)\b"
)
_OF_LAUNCHER = "torch.distributed.elastic."
_BY_HAND = "got signal: 2"  # somebody pressed Ctrl-C
# One is in whatever tells of a failure.
_WORDS = (
    "ailed", "ailure", "FAILED", "rash", " died", " dead", "bort", "ABORT", " hung", "vict", "unreach", "illed",
    "erminated", "TERMIN", "ancel", "reempted", "exit", "Exit", "EXIT", "status", "code ", "State=", "TIMEOUT",
    "NODE_F", "OUT_OF", "Succ", "closing signal", "rror", "xception", "ackoff", "ack-off", "ackOff", "ErrImage",
    "ContainerE", "nfigError", "fficient nv", "ContainerS", "Started con", "Scheduling", "not found", "o such",
    "No module", "denied", "annot ", "can't", "memory", "unable to", "imed out", "Process received", "slots",
    "onnection", "Job ex", "not permit", "isconnected", "Horovod has b", "node down: ", " ERROR",
)  # fmt: skip
_DONE_IN_SMALL = ("destroy_", "100%|", "shut", "exiting", "done", "complete", "finished")
_OF_ALL = re.compile(r"(?<=\d)/\d")
_DONE_WORDS = ("destroy_", "100%|", "hut", "xiting", "done", "omplete", "inished", "/")


class Failures:
    """The first few such lines, each message once; those that passed are left out."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int | None, str]] = {}
        self._waits: dict[str, tuple[int, int | None, str]] = {}
        self._store: dict[str, tuple[int, int | None, str]] = {}
        self._late: deque[tuple[int, int | None, str]] = deque(maxlen=_MOST)
        self._last = 0  # line that says anything
        self._done = False

    def take(self, number: int, rank: int | None, body: str) -> None:
        head = body[:_SEARCHED]
        if body.strip():
            self._last = number
        if not self._done and any(map(head.__contains__, _DONE_WORDS)):
            self._done = _may_be_done(head) and _DONE.search(head) is not None
        if not any(map(head.__contains__, _WORDS)):
            return
        if _STORE.search(head) is not None:
            _keep(self._store, number, rank, body)
        elif _WAITS.search(head) is not None:
            _keep(self._waits, number, rank, body)
        elif _says_failed(head):
            _keep(self._found, number, rank, body)
        elif _LATE.match(head) is not None and _GOES_ON.search(head) is None:
            self._late.append((number, rank, body.strip()))
        elif _STARTS.search(head) is not None:
            self._waits.clear()

    def raised(self, number: int, rank: int | None, text: str) -> None:
        """What torchrun raised, if it is because a rank failed: the end of its traceback."""
        if text.startswith(_OF_LAUNCHER) and _BY_HAND not in text:
            _keep(self._found, number, rank, text.rstrip("= "))

    def warned(self, number: int, rank: int | None, text: str) -> None:
        """An exception that a logger calls a warning, or less: nothing, unless the log ends there."""
        self._late.append((number, rank, text))

    def found(self) -> Iterable[tuple[int, int | None, str]]:
        """Line number, who says it, text."""
        store = () if self._done else self._store.values()
        late = [one for one in self._late if self._last - one[0] < _AT_END]
        return sorted((*self._found.values(), *self._waits.values(), *store, *late), key=lambda one: one[0])[:_MOST]


def _may_be_done(head: str) -> bool:
    """A quick look for what `_DONE` looks for: it takes long, and a slash is in most lines ('tokens/s')."""
    lower = head.lower()
    return any(map(lower.__contains__, _DONE_IN_SMALL)) or _OF_ALL.search(head) is not None


def _keep(found: dict[str, tuple[int, int | None, str]], number: int, rank: int | None, body: str) -> None:
    alike = "".join(char for char in body if char.isalpha())[:_SEARCHED]
    if len(found) < _MOST:
        found.setdefault(alike, (number, rank, body.strip()))


def _says_failed(head: str) -> bool:
    if _CHAT.match(head) is not None:
        return False
    if (ended := _EXIT.search(head)) is not None:
        before = head[: ended.start()]
        return ended["code"] not in _ENDS_WELL and _ONLY_SAID.search(before[-60:]) is None
    if any(words.search(head) is not None for words in (_NAMED, _COUNTED, _ENDED)):
        return True
    if _ERROR.match(head) is not None:
        return True
    clause = _CLAUSE.search(head)
    if clause is None or _MILD.search(head) is not None:
        return False
    said = _CLAUSE_BEGINS.split(head[: clause.start()])[-1]  # what stands before it in its clause
    return len(_BARE_WORD.findall(said)) <= 1 and _ONLY_SAID.search(said + clause[0]) is None
