"""What is true of each of the logs in tests/data/public_logs, written down before traceops saw them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from traceops.core.errors import InputError
from traceops.core.rank_text import who_first
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, seen_lines, what_would_decide

LOGS = Path(__file__).parents[1] / "data" / "public_logs" / "logs.txt"
Outcome = Literal["right", "abstained", "missed", "wrong"]


@dataclass(frozen=True)
class Truth:
    """rules: any of them is right, none where the log does not tell a cause. ranks: whose failure it is.

    low: rules that may be told at low confidence, of any rank. says: what the answer has to hold, in any case.
    never: what it must not. healthy: nothing is wrong, so nothing may be said.
    """

    rules: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    low: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = field(default=("Nobody",))
    healthy: bool = False


def memory(*says: str, ranks: tuple[int, ...] = ()) -> Truth:
    """Of the host, whoever noticed."""
    return Truth(("TO-E002", "TO-H004"), ranks, says=("memory", *says), never=("GPU memory", "Nobody"))


def outside(*says: str) -> Truth:
    """Ended by somebody else: a limit, a lost node, a closed terminal."""
    return Truth(("TO-E008",), says=says)


WAITS = ("TO-H006", "TO-H001")
HEALTHY = Truth(healthy=True)
TRUTHS: Mapping[str, Truth] = {
    # Who speaks is in the same call; of the others the paste tells nothing.
    "watchdog_same_call": Truth(low=WAITS, says=("1580",)),
    "watchdog_behind_tqdm": Truth(says=("5129", "Rank 5", "the other ranks' logs")),
    "watchdog_numbers_apart": Truth(low=(*WAITS, "TO-H003"), says=("all_reduce",)),
    "watchdog_and_monitors": Truth(low=WAITS, says=("120049",)),
    "watchdog_all_to_all": Truth(low=WAITS, says=("4486",)),
    "watchdog_torch20": Truth(low=WAITS, says=("2511984",)),
    "aborted_on_one_rank": Truth(says=("broadcast", "Rank 2", "the other ranks' logs")),
    "watchdog_one_number": Truth(says=("7487", "Rank 2", "the other ranks' logs")),
    "watchdog_without_number": Truth(says=("all_reduce", "Rank 7", "the other ranks' logs")),
    "watchdog_retold": Truth(says=("all_reduce",)),
    "mismatch_of_shapes": Truth(("TO-H002",), (0, 1), says=("3104",)),
    "mismatch_in_report": Truth(("TO-H002",), (1, 2), says=("barrier",)),
    "mismatch_capital_rank": Truth(("TO-H002",), (1, 7), says=("all_gather",)),
    "nccl_mismatched_collective": Truth(("TO-H002",), (39,), says=("39",)),
    "nccl_cuda_pod_prefix": Truth(("TO-E004",), says=("initialization error",)),
    "nccl_nvls_cuda": Truth(("TO-E004",), (1,), says=("initialization error", "temp.py:32")),
    "nccl_calloc_8mb": Truth(("TO-E001",), says=("memory", "utils.py:75")),
    "barrier_out_of_memory": Truth(("TO-E001",), says=("initialize (nnUNetTrainerV2_DDP.py:160)",)),
    "nccl_socket_closed_only": Truth(says=("10.10.1.3", "every rank's own output")),
    "nccl_ib_retry_exceeded": Truth(("TO-E004",), says=("172.36.143.59", "retries exceeded")),
    "nccl_broken_pipe": Truth(says=("Broken pipe", "every rank's own output")),
    "nccl_mpi_time_prefix": Truth(("TO-E004", "TO-E003"), (0, 3), says=("invalid argument",)),
    "nccl_invalid_device_pointer": Truth(("TO-E004",), (7,), says=("invalid device pointer",)),
    "ray_node_memory": memory(),
    "raylet_pressure": memory(),
    "ray_actor_died": Truth(("TO-E005", "TO-H004"), low=("TO-E002",), says=("ActorDiedError",)),
    "ray_worker_gpu_memory": Truth(("TO-E001",), says=("594", "fsdp_workers.py:410")),
    "k8s_oomkilled": memory(),
    "k8s_exit_137": Truth(("TO-H004",), says=("SIGKILL",)),
    "k8s_evicted_memory": memory("evict"),
    "k8s_evicted_disk": Truth(("TO-E007",), says=("ephemeral-storage",)),
    "k8s_describe_evicted": memory("evict"),
    "slurm_out_of_memory": memory(ranks=(0,)),
    "slurm_step_oom_kill": memory(ranks=(0,)),
    "slurm_shell_killed": memory(),
    "killed_only": Truth(("TO-H004",), says=("SIGKILL",)),
    "slurm_time_limit": outside("time limit", "checkpoint"),
    "slurm_node_failure": outside("worker-1"),
    "hangup_torch2": outside("SIGHUP", "tmux"),
    "hangup_torch1": outside("SIGHUP", "tmux"),
    "deepspeed_return_minus_9": Truth(("TO-H004",), says=("SIGKILL",)),
    "deepspeed_return_minus_11": Truth(("TO-H004", "TO-E005"), says=("SIGSEGV",)),
    "deepspeed_return_1": Truth(says=("every rank's own output",)),
    "loss_scale_minimum": Truth(("TO-E005",), says=("loss scale",)),
    "loss_is_nan": Truth(("TO-E005",), says=("NaN",)),
    "nan_in_grad_norm": Truth(("TO-E005",), (3,), says=("NaN", "pretrain_megatron_baichuan.py:101")),
    "loader_worker_killed": memory(),
    "loader_worker_exited": Truth(("TO-E005",), says=("num_workers=0",)),
    "too_many_open_files": Truth(("TO-E007",), says=("ulimit -n",)),
    "ancdata": Truth(("TO-E007",), says=("ulimit -n", "train.py:131")),
    "quota_in_checkpoint": Truth(("TO-E007",), says=("quota", "train.py:118")),
    "safetensors_header": Truth(("TO-E005",), says=("HeaderTooLarge", "download")),
    "zip_central_directory": Truth(("TO-E005",), says=("central directory", "download")),
    "driver_too_old": Truth(("TO-E003",), says=("driver", "10010", "fc_model_additive.py:264")),
    "driver_too_old_one_line": Truth(("TO-E003",), says=("driver", "11040")),
    "load_on_missing_gpu": Truth(("TO-E006", "TO-E003"), says=("map_location",)),
    "state_dict_sizes": Truth(("TO-E005",), says=("state_dict", "fpn_inner3")),
    "two_devices": Truth(("TO-E005", "TO-E006"), says=("cuda:1",)),
    "inplace_under_ddp": Truth(("TO-E006",), says=("broadcast_buffers=False",)),
    "gloo_closed_echo": Truth(says=("Connection closed by peer", "every rank's own output")),
    "gloo_full_mesh": Truth(("TO-E004", "TO-E007"), says=("GLOO_SOCKET_IFNAME",)),
    "gloo_slow_then_reset": Truth(says=("reset by peer", "every rank's own output")),
    "store_not_reached": Truth(("TO-E007",), says=("192.0.0.1:1234",)),
    "clients_did_not_join": Truth(("TO-E007",), says=("1/3", "WORLD_SIZE")),
    "store_barrier_worlds": Truth(("TO-E007",), (2,), says=("worker_count=4", "WORLD_SIZE")),
    "store_any_address": Truth(("TO-E007",), says=("47389", "MASTER_ADDR")),
    "xids_of_nvlink": Truth(("TO-E003",), says=("149",)),
    "xid_79": Truth(("TO-E003",), says=("fallen off the bus",)),
    "fallen_without_xid": Truth(("TO-E003",), says=("fallen off the bus",)),
    "kernel_oom_container": memory(),
    "torchrun_minus_11": Truth(("TO-H004",), (0,), says=("SIGSEGV",)),
    "ordinal_in_report": Truth(("TO-E003", "TO-H004"), (1,), says=("does not see",)),
    "ecc_in_what": Truth(("TO-E003",), says=("hardware",)),
    "undefined_symbol_one_line": Truth(("TO-E005",), says=("undefined symbol",)),
    "sagemaker_mpi_prefix": Truth(("TO-E001",), (3,), says=("96.00 MiB", "run_qa.py:588")),
    **{
        f"healthy_{name}": HEALTHY
        for name in (
            "destroy_warning", "gradient_overflow", "deepspeed_overflow", "nccl_service_thread", "unused_flag",
            "megatron_nan_column", "socket_retry", "no_p2p", "memory_in_steps", "lightning_start", "k8s_events",
            "thread_of_a_tool",
        )
    },
}  # fmt: skip


def is_held_out(name: str) -> bool:
    """Half of them, by their names alone: the rules were written without looking at how these are told."""
    return zlib.crc32(name.encode()) % 2 == 0


def texts() -> dict[str, str]:
    """The logs by name."""
    found: dict[str, str] = {}
    for part in LOGS.read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, text = part.partition("\n")
        found[head.partition(" | ")[0]] = text
    return found


def answer(diagnosis: Diagnosis) -> str:
    """All that the terminal says of causes, what was seen and what would decide."""
    seen = [f"{event.text} {who_first(said_by)}" for event, said_by in seen_lines(diagnosis)]
    advice = [root_advice(root) for root in diagnosis.roots]
    return "\n".join([hang_sentence(diagnosis), *advice, *seen, what_would_decide(diagnosis)])


def outcome_of(truth: Truth, path: Path) -> tuple[Outcome, str]:
    """How a log is told against what is true of it, and the answer."""
    try:
        diagnosis = diagnose(path)
    except InputError as error:
        return ("right" if truth.healthy else "missed"), str(error)
    told = answer(diagnosis)
    if truth.healthy:
        quiet = not diagnosis.roots and hang_level(diagnosis) == "info"
        return ("right" if quiet else "wrong"), told
    lower = told.lower()
    holds = all(word.lower() in lower for word in truth.says) and not any(word in told for word in truth.never)
    if not diagnosis.roots:
        if not what_would_decide(diagnosis):
            return "missed", told
        return ("right" if not truth.rules and holds else "abstained"), told
    root = diagnosis.roots[0]
    if len(diagnosis.roots) == 1 and root.rule in truth.rules and root.ranks == truth.ranks:
        return ("right" if holds else "abstained"), told
    if all(root.rule in truth.low and root.confidence == "low" for root in diagnosis.roots):
        return ("right" if holds else "abstained"), told
    return "wrong", told
