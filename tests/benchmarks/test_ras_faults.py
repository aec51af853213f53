"""NCCL's RAS report alone, replayed over the planted hangs: who is named where counts tell, and nobody else ever."""

from pathlib import Path

import pytest

from benchmarks.hangs import ras_faults


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_other_rank_is_named_and_a_healthy_job_is_quiet(tmp_path: Path, form: ras_faults.Form) -> None:
    told = {job: ras_faults.verdict(job, ras_faults.named(job, form, tmp_path)) for job in ras_faults.jobs()}
    assert "wrong" not in told.values() and sum(ras_faults.JOBS.values()) == 76 + 8
    for job, verdict in told.items():
        pair = job.fault == "op" and job.ranks == 2  # each is ahead of the other in one operation
        tells = job.fault not in ("size", "gpu", "init") and not pair
        assert verdict == ("right" if tells else "open"), job
