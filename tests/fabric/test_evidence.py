"""What people save of a machine, found, read and judged: real files beside traces, in evidence/, and named."""

import gzip
import shutil
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.fabric.read import named_fabric, run_fabric
from traceops.fabric.talks import nearest_nics
from traceops.rules.fabric.judge import judge_fabric

DATA = Path(__file__).parent.parent / "data"
TOPOLOGY, LOGS = DATA / "topology", DATA / "nccl_logs"


def fired(fabric):
    return {v.rule: [f.severity for f in v.findings] for v in judge_fabric(fabric) if v.findings}


def test_two_l4_on_two_nodes_with_a_bonded_nic():
    fabric = named_fabric([TOPOLOGY / "l4x2_bonded.txt"])
    assert fired(fabric) == {"TO-P001": ["info"]}
    (machine,) = fabric.machines
    near = {gpu.label: [nic.name for nic in nearest_nics(machine, gpu)[0]] for gpu in machine.gpus}
    assert near == {"GPU0": ["mlx5_bond_0"], "GPU1": ["mlx5_0", "mlx5_1"]}
    assert {nic.name: (nic.numa, nic.bonded) for nic in machine.nics} == {
        "mlx5_0": (1, False), "mlx5_1": (1, False), "mlx5_bond_0": (0, True),
    }  # fmt: skip
    found = judge_fabric(fabric)[0].findings[0]
    assert "GPU0 and GPU1 reach each other only through PCIe and the link between the processors" in found.message
    told = {one.metric: one.value for one in found.evidence}
    assert told["nearest NICs of GPU0"] == "bonded NIC2 (mlx5_bond_0) (NODE)"
    assert told["nearest NICs of GPU1"] == "NIC0 (mlx5_0), NIC1 (mlx5_1) (NODE)"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("p2p.txt", {}),
        ("shm.txt", {"TO-P002": ["warning"]}),
        ("socket.txt", {"TO-P002": ["warning"], "TO-P003": ["warning"]}),
        ("no_interface.txt", {"TO-P003": ["error"]}),
    ],
)
def test_what_nccl_says_of_a_host_with_nvlink(name, rules):
    fabric = named_fabric([LOGS / name, TOPOLOGY / "h200x4.txt"])
    assert fired(fabric) == rules


@pytest.mark.parametrize("first", ["{'loss': 2.31, 'epoch': 0.1}", '{"loss": 2.31}', "<rank 0> starts"])
def test_a_log_is_read_whatever_the_trainer_prints_first(tmp_path, first):
    log = tmp_path / "slurm-1.out"
    log.write_text(f"{first}\n{(LOGS / 'shm.txt').read_text()}")
    assert fired(named_fabric([log, TOPOLOGY / "h200x4.txt"])) == {"TO-P002": ["warning"]}


def test_evidence_is_found_in_a_run_folder_and_beside_traces(tmp_path):
    run = tmp_path / "run"
    (run / "evidence").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    shutil.copy(LOGS / "shm.txt", run / "evidence" / "nccl.vm.1.log")
    shutil.copy(TOPOLOGY / "h200x4.txt", run / "evidence" / "topo.vm.txt")
    shutil.copy(LOGS / "socket.txt", run / "notes.txt")  # of a run folder only its evidence and logs count
    assert fired(run_fabric(str(run))) == {"TO-P002": ["warning"]}
    (run / "run.json").unlink()
    (run / "notes.txt").unlink()
    shutil.copy(LOGS / "shm.txt", run / "log.txt")
    shutil.rmtree(run / "evidence")
    assert fired(run_fabric(str(run), [TOPOLOGY / "h200x4.txt"])) == {"TO-P002": ["warning"]}


def test_a_folder_without_any_has_no_fabric(tmp_path):
    (tmp_path / "notes.txt").write_text("loss 3.5\n")
    assert run_fabric(str(tmp_path)) is None
    assert run_fabric("s3://bucket/run") is None


def test_a_bad_file_that_was_found_hides_no_other_and_one_that_was_named_is_an_error(tmp_path):
    (tmp_path / "topo.xml").write_text('<system version="1"><cpu numaid=')
    shutil.copy(LOGS / "p2p.txt", tmp_path / "log.txt")
    fabric = run_fabric(str(tmp_path))
    assert fabric.log is not None
    assert [Path(path).name for path, _ in fabric.problems] == ["topo.xml"]
    with pytest.raises(InputError, match=r"topo\.xml"):
        named_fabric([tmp_path / "topo.xml"])
    with pytest.raises(InputError, match=r"nosuch\.txt"):
        named_fabric([tmp_path / "nosuch.txt"])
    (tmp_path / "notes.txt").write_text("loss 3.5\n")
    with pytest.raises(InputError, match="holds no topology matrix"):
        named_fabric([tmp_path / "notes.txt"])
    with pytest.raises(InputError, match="no file tells about GPUs and links"):
        named_fabric([tmp_path / "empty"]) if (tmp_path / "empty").mkdir() is None else None


def test_a_dump_of_nccls_graph_is_read():
    fabric = named_fabric([TOPOLOGY / "h200x4_graphs_nccl_2.28.xml", TOPOLOGY / "h200x4_nccl_2.28.xml"])
    assert {(graph.pattern, graph.intra_gbs) for graph in fabric.graphs} >= {(4, 360.0)}
    assert [len(machine.gpus) for machine in fabric.machines] == [4]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_what_powershell_wrote_is_read(tmp_path, encoding):
    file = tmp_path / "topo.txt"
    file.write_bytes(
        ("" if encoding == "utf-16" else "\ufeff").encode(encoding)
        + (TOPOLOGY / "l4x2_bonded.txt").read_text().encode(encoding)
    )
    ours, theirs = (named_fabric([one]).machines[0] for one in (file, TOPOLOGY / "l4x2_bonded.txt"))
    assert (ours.gpus, ours.nics) == (theirs.gpus, theirs.nics)
    assert {pair: path.kind for pair, path in ours.paths.items()} == {
        pair: path.kind for pair, path in theirs.paths.items()
    }


def test_an_archive_may_hold_several_jobs(tmp_path):
    packed = tmp_path / "logs.tgz"
    packed.write_bytes(gzip.compress((LOGS / "p2p.txt").read_bytes()))
    with pytest.raises(InputError, match="unpack it"):
        named_fabric([packed])


def test_matrices_of_two_machines_without_names_stay_two():
    fabric = named_fabric([TOPOLOGY / "a100x4_in_comments.txt", TOPOLOGY / "b200x8_one_without_nvlink.txt"])
    assert [len(machine.gpus) for machine in fabric.machines] == [4, 8]


def test_a_cube_of_v100_has_as_many_links_on_every_gpu():
    assert set(fired(named_fabric([TOPOLOGY / "v100x8_cube.txt"]))) <= {"TO-P001"}
