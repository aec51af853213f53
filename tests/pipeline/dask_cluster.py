"""A dask cluster of two worker processes that lasts until its input ends; it prints its scheduler's address.

With a rank as argument, whoever summarises that rank is killed; with `tls`, it speaks TLS as dask's settings say.
"""

import os
import signal
import sys

import dask
from distributed import Client, LocalCluster, Security, WorkerPlugin


class Kills(WorkerPlugin):
    """Kills a worker that summarises this rank, those too that are started in its place."""

    def __init__(self, rank):
        self.rank = rank

    def setup(self, worker):
        from traceops.pipeline.mapping import ranks

        summarize = ranks.summarize

        def die(file, *options):
            if file.rank == self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            return summarize(file, *options)

        ranks.summarize = die


if __name__ == "__main__":
    # Workers are forked from a process that has loaded dask once for all of them.
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    tls = sys.argv[1:] == ["tls"]
    protocol = {"protocol": "tls://", "security": Security()} if tls else {}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, **protocol) as cluster,
        Client(cluster) as client,
    ):
        if len(sys.argv) > 1 and not tls:
            client.register_plugin(Kills(int(sys.argv[1])))
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
