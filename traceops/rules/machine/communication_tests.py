"""TO-D601 to TO-D607: what tests of communication show; traceops/doctor/ runs and judges them."""

from __future__ import annotations

from traceops.core.rule import JudgedBy, Rule

AREA = "tests"

TEST_FAILED = Rule(
    id="TO-D601",
    title="A test of communication failed",
    fires="Error for each test with the environment as it is that gave wrong results, failed, or hung.",
    advice="See which ranks are named and what they printed; below are the changes that the doctor tried.",
    judged_by=JudgedBy.DOCTOR,
)
SLOW_VARIABLE = Rule(
    id="TO-D602",
    title="A variable of the environment slows all-reduce, as measured",
    fires=(
        "Warning where all-reduce is 1.2 times as fast without it, error from 2 times; info where a test "
        "fails without it."
    ),
    advice="Unset it. If it works around a fault, fix that fault first.",
    judged_by=JudgedBy.DOCTOR,
)
PAIRS = Rule(
    id="TO-D603",
    title="Pairs of GPUs fail or give wrong values",
    fires="Error where some pairs come out wrong and others right.",
    advice=(
        "Compare the paths of these pairs with the others (nvidia-smi topo -m), and check the GPU that all "
        "of them share."
    ),
    judged_by=JudgedBy.DOCTOR,
)
DEVICE = Rule(
    id="TO-D604",
    title="A GPU fails by itself, or keeps the others from working",
    fires="Error for GPUs that fail alone, or without which the others work.",
    advice=("See what uses the GPU (nvidia-smi), its health (nvidia-smi -q) and its links (nvidia-smi nvlink -s)."),
    judged_by=JudgedBy.DOCTOR,
)
NODES = Rule(
    id="TO-D605",
    title="Nodes do not work together",
    fires="Error where nodes work by themselves and not together, or one was lost during the tests.",
    advice="Check the network between them, or start jobs without the node that fails.",
    judged_by=JudgedBy.DOCTOR,
)
SLOW_ALL_REDUCE = Rule(
    id="TO-D606",
    title="All-reduce is far below what the machine should give",
    fires=(
        "Error where it is below half of what the link gives, 70 % of what these GPUs gave before, or, "
        "between nodes, a tenth of the network (gloo: 3 %), also with the best change."
    ),
    advice=(
        "See the links (nvidia-smi nvlink -s) and the way NCCL took; between nodes measure the network "
        "itself (iperf3, ib_write_bw)."
    ),
    judged_by=JudgedBy.DOCTOR,
)
COMES_AND_GOES = Rule(
    id="TO-D607",
    title="A failure came and went",
    fires="Warning where a test failed and worked the next time, with nothing changed.",
    advice=(
        "Run traceops doctor again; if it fails now and then, see the kernel's log (dmesg) and who else "
        "uses the machine."
    ),
    judged_by=JudgedBy.DOCTOR,
)
RULES = (TEST_FAILED, SLOW_VARIABLE, PAIRS, DEVICE, NODES, SLOW_ALL_REDUCE, COMES_AND_GOES)
