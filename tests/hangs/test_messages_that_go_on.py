"""Exceptions whose message has its point in the lines behind: of the compiler, of a rank's own part in a checkpoint."""

from __future__ import annotations

import pytest

from traceops.report.hang_text import hang_sentence

PTXAS = (
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 297, in make',
    "    raise RuntimeError(log)",
    "RuntimeError: Internal Triton PTX codegen error:",
    "ptxas fatal   : Value 'sm_100' is not defined for option 'gpu-name'",
)
CHECKPOINT = "/v/lib/python3.11/site-packages/torch/distributed/checkpoint"
RAISED = (
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 103, in resume',
    "    dcp.load(state)",
    f'  File "{CHECKPOINT}/utils.py", line 192, in reduce_scatter',
    "    raise result",
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])",
)
ON_RANK = (
    f'  File "{CHECKPOINT}/default_planner.py", line 400, in create_default_local_load_plan',
    '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")',
    "RuntimeError: Missing key in checkpoint state_dict: model.2.weight.",
)


@pytest.mark.parametrize("label", ["", "[rank6]: ", "[default6]:[rank6]: "])
def test_the_rest_of_a_message_behind_labels(told, label):
    """mlcommons/training 826: 'Internal Triton PTX codegen error:.' was all that was said, where ranks have labels."""
    said = hang_sentence(told("".join(f"{label}{line}\n" for line in PTXAS)))
    assert "codegen error: ptxas fatal : Value 'sm_100' is not defined" in said


@pytest.mark.parametrize("label", ["", "[rank0]: "])
def test_what_failed_on_the_ranks_of_a_checkpoint(told, label):
    """pytorch/pytorch 148252: only 'CheckpointException ranks:dict_keys([0])' was told."""
    of_ranks = [line for rank in range(2) for line in (f"Traceback (most recent call last): (RANK {rank})", *ON_RANK)]
    said = hang_sentence(told("".join(f"{label}{line}\n" for line in (*RAISED, *of_ranks))))
    assert "at resume (train.py:103)" in said
    assert said.count("Missing key in checkpoint state_dict: model.2.weight") == 1
