"""Runs a script on two ranks that are forked from this process, which holds torch: ``forked_ranks.py SCRIPT ARGS…``."""

import os
import runpy
import socket
import sys
from pathlib import Path

import torch
import torch.distributed


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main() -> int:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            clock_now()
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def clock_now() -> None:
    """The clock of observed_site, which found no rank when this process started."""
    import sitecustomize

    sitecustomize.begin()


if __name__ == "__main__":
    sys.exit(main())
