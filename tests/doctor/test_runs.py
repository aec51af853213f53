"""One set of trials from what several nodes say, and GPUs named as nvidia-smi counts them."""

from __future__ import annotations

from traceops.doctor.candidates import hidden_but, visible_gpus
from traceops.doctor.model import PairState, Trial
from traceops.doctor.runs import merged
from traceops.fabric.model import Gpu, Machine, Measured


def trial(name: str, outcome: str, message: str = "", **more: object) -> Trial:
    return Trial(name, outcome, (0, 1), 3.0, 20.0, message, **more)  # type: ignore[arg-type]


def test_the_worst_that_any_node_says_is_what_became_of_it():
    row = Measured("all_reduce", (0, 1, 2, 3), 1 << 20, 100.0, 5.0)
    slower = Measured("all_reduce", (0, 1, 2, 3), 1 << 20, 120.0, 4.2)
    one = (
        trial("start", "failed", "connection refused", said=("rank 0: refused",), failed=(0,)),
        trial("sweep", "ok", measured=(row,), pairs=(PairState((0, 1), "ok"), PairState((0, 2), "not_evaluated"))),
    )
    other = (
        trial("start", "hung", "stood at the store"),
        trial("sweep", "ok", measured=(slower,), pairs=(PairState((0, 2), "hung"), PairState((2, 3), "ok"))),
    )
    start, sweep = merged((one, other), ("a", "b"))
    assert start.outcome == "hung" and start.hosts == ("a", "b") and start.gpus == (0, 1, 2, 3)
    assert start.message == "a: connection refused; b: stood at the store"
    assert start.said == ("a: rank 0: refused",) and start.failed == (0,)
    assert sweep.measured == (slower,)
    # Rank 0 never came to the pair in which rank 2 waited for it.
    assert sweep.pairs == (PairState((0, 1), "ok"), PairState((0, 2), "not_evaluated"), PairState((2, 3), "ok"))


MACHINE = Machine("a", tuple(Gpu(index, uuid=f"GPU-{index}{index}ab") for index in range(4)))


def test_visible_gpus_come_in_cudas_order_and_end_where_it_ends():
    seen = {
        None: (0, 1, 2, 3), "": (), "-1": (), "2,0": (2, 0), " 1 , 3": (1, 3), "0,9,1": (0,), "1,1": (1,),
        "GPU-22,GPU-0": (2, 0), "GPU-": (), "MIG-x,MIG-y": (0, 1),
    }  # fmt: skip
    for names, gpus in seen.items():
        environ = {} if names is None else {"CUDA_VISIBLE_DEVICES": names}
        assert visible_gpus(MACHINE, environ) == gpus, names


def test_hiding_one_keeps_the_words_that_were_used():
    assert hidden_but((0, 1, 3), {}, (0, 1, 2, 3)) == "0,1,3"
    assert hidden_but((2,), {"CUDA_VISIBLE_DEVICES": "GPU-22,GPU-0"}, (2, 0)) == "GPU-22"
    assert hidden_but((2,), {"CUDA_VISIBLE_DEVICES": "2,0,9"}, (2, 0)) == "2"
