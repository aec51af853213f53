"""A dask cluster of two worker processes that lasts until its input ends; it prints its scheduler's address.

With a rank as argument, whoever summarises that rank is killed.
"""

import os
import signal
import sys

from distributed import Client, LocalCluster, WorkerPlugin


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
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        if len(sys.argv) > 1:
            client.register_plugin(Kills(int(sys.argv[1])))
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
