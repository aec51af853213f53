"""Where a process belongs among nodes, and that they agree on what each said and on who is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from ports import free_port

from traceops.core.errors import UsageError
from traceops.doctor.nodes import NodeError, NodeIdentity, Nodes, expand_nodes, find_identity, meet
from traceops.fabric.model import Machine, Path

pytestmark = pytest.mark.torch

TORCHRUN = {
    "RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "gpu[09-10],c1",
}  # fmt: skip


def test_the_launcher_says_where_a_process_belongs():
    assert find_identity({}) == NodeIdentity(0, 1)
    assert find_identity(TORCHRUN) == NodeIdentity(1, 2, "a", 29400, agent=True)
    assert find_identity(TORCHRUN | {"LOCAL_RANK": "3"}) is None  # the node's first process does the work
    assert find_identity(TORCHRUN | {"GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "GROUP_RANK": "0"}) == NodeIdentity()
    by_hand = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    assert find_identity(by_hand) == NodeIdentity(1, 2, "a", 29500)
    assert find_identity(SLURM) == NodeIdentity(2, 3, "gpu09", 20_000 + 3456, names=("gpu09", "gpu10", "c1"))
    assert find_identity(SLURM | {"SLURM_LOCALID": "1"}) is None
    batch_script = {"SLURM_NNODES": "3", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1"}
    assert find_identity(batch_script) == NodeIdentity()  # the other nodes run nothing
    assert find_identity(TORCHRUN, nnodes=2, node_rank=1, master_addr="b", master_port=7) == NodeIdentity(1, 2, "b", 7)
    assert find_identity(SLURM, nnodes=1) == NodeIdentity()


@pytest.mark.parametrize(
    "options",
    [{"nnodes": 2}, {"nnodes": 2, "master_addr": "a"}, {"nnodes": 2, "master_addr": "a", "node_rank": 2},
     {"node_rank": 1}, {"master_addr": "a"}],
)  # fmt: skip
def test_options_with_which_nodes_could_not_meet_are_refused(options):
    with pytest.raises(UsageError, match=r"--node-rank|--master-addr"):
        find_identity({}, **options)
    with pytest.raises(UsageError, match="LOCAL_RANK is 'x'"):
        find_identity({"LOCAL_RANK": "x", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]), ("a,b", ["a", "b"]), ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[008-010,3]-ib", ["n008-ib", "n009-ib", "n010-ib", "n3-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]), ("a[1,5],b,c-d[2]", ["a1", "a5", "b", "c-d2"]), ("", []),
    ],
)  # fmt: skip
def test_slurms_lists_of_nodes(text, names):
    assert list(expand_nodes(text)) == names


def test_one_node_waits_for_nobody_and_needs_no_torch():
    code = """
        import sys
        from traceops.doctor.nodes import NodeIdentity, Nodes, meet
        nodes = meet(NodeIdentity())
        assert nodes.gather(3, int) == (3,) and nodes.first("x", str) == "x" and nodes.leads
        nodes.end()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_all_nodes_hear_the_same_in_the_order_of_nodes():
    port = free_port()
    machines = [Machine("a"), Machine("b", paths={("GPU0", "GPU1"): Path("NV", 18)}), Machine("c")]

    def node(number: int) -> tuple[object, ...]:
        nodes = meet(NodeIdentity(number, 3, "127.0.0.1", port), 20.0)
        heard = nodes.gather(machines[number], Machine), nodes.first(number + 5, int), nodes.hosts
        nodes.end()
        return heard

    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(node, [2, 0, 1]))
    assert heard[0] == heard[1] == heard[2]
    assert heard[0][:2] == (tuple(machines), 5)
    assert len(set(heard[0][2])) == 3  # one host here thrice: told apart by the node's number


def test_a_node_that_does_not_come_is_named_on_all_that_do():
    port = free_port()

    def node(number: int) -> str:
        with pytest.raises(NodeError) as missing:
            meet(NodeIdentity(number, 3, "127.0.0.1", port, names=("a", "b", "c")), 1.5)
        return str(missing.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(node, [0, 2]))
    assert all("node 1 (host b) did not answer within 2 s" in one for one in said)


def test_a_node_that_is_lost_on_the_way_is_named_by_its_host():
    port = free_port()

    def node(number: int) -> str:
        nodes = meet(NodeIdentity(number, 2, "127.0.0.1", port), 20.0)
        nodes.hosts = ("one", "other")
        if number == 1:
            return ""
        with pytest.raises(NodeError) as missing:
            nodes.gather(1, int, 0.5)
        return str(missing.value)

    with ThreadPoolExecutor(2) as pool:
        assert "node 1 (host other) did not answer" in next(iter(pool.map(node, [0, 1])))


def test_without_node_0_nobody_waits_for_ever():
    with pytest.raises(NodeError, match=r"node 0 at 127\.0\.0\.1, port \d+, cannot be reached"):
        meet(NodeIdentity(1, 2, "127.0.0.1", free_port()), 1.0)


def test_an_answer_of_another_version_is_told_from_silence():
    nodes = Nodes(NodeIdentity(0, 1))
    assert nodes.gather("text", str) == ("text",)
    port = free_port()

    def node(number: int) -> None:
        nodes = meet(NodeIdentity(number, 2, "127.0.0.1", port), 20.0)
        with pytest.raises(NodeError, match="another version"):
            nodes.gather({"new": number}, Machine)
        nodes.end()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(node, [0, 1]))
