"""What the numbers behind findings are: the members are looked up by, their words lie in words/facts.ini."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any

from traceops.core.cause_words import BUCKETS
from traceops.words.catalogue import texts


class Fact(Enum):
    """One kind of number or line that proves a finding. Values are contracts: report.json holds them."""

    ANCHORS = "anchors"
    ANOMALY_READS = "anomaly_reads"
    ATTAINABLE_PCT = "attainable_pct"
    AT_END_OF_STEP = "at_end_of_step"
    A_BONDED_NIC = "a_bonded_nic"
    BEHIND_COPIES = "behind_copies"
    BEST_BUSBW = "best_busbw"
    BEYOND_TYPICAL_STEPS = "beyond_typical_steps"
    BLOCKING_CALL = "blocking_call"
    BLOCKING_CALLS = "blocking_calls"
    BUCKET = "bucket"
    BUCKET_PCT = "bucket_pct"
    BUCKET_PCT_MOST = "bucket_pct_most"
    BUCKET_PCT_SPREAD = "bucket_pct_spread"
    BUSBW = "busbw"
    BUSBW_OF_THE_LARGEST_MESSAGE = "busbw_of_the_largest_message"
    BUSIEST_LOADER_WORKER = "busiest_loader_worker"
    BUSY = "busy"
    BY_THE_SCHEDULE_ALONE = "by_the_schedule_alone"
    CALLS = "calls"
    CALLS_FOR_MEMORY = "calls_for_memory"
    CALLS_PER_STEP = "calls_per_step"
    CAME = "came"
    CAUSE_SPLIT = "cause_split"
    CHANCE = "chance"
    CHANGE = "change"
    CLOCK = "clock"
    CLOCKS_APART = "clocks_apart"
    CLUE = "clue"
    COLLECTING_GARBAGE = "collecting_garbage"
    COLLECTIVES = "collectives"
    COMMON_STEPS = "common_steps"
    COMPILING = "compiling"
    COMPILING_AGAIN = "compiling_again"
    COPIES = "copies"
    CORES_FOR_A_RANK = "cores_for_a_rank"
    CUDAMALLOC = "cudamalloc"
    DAMAGE = "damage"
    DOING_INSTEAD = "doing_instead"
    EVENTS_READ = "events_read"
    EXPOSED_COPIES = "exposed_copies"
    EXPOSED_COPIES_PCT = "exposed_copies_pct"
    EXPOSED_COPIES_SPREAD = "exposed_copies_spread"
    EXPOSED_PCT = "exposed_pct"
    EXPOSED_TRANSFER = "exposed_transfer"
    EXPOSED_TRANSFER_PCT = "exposed_transfer_pct"
    FILE = "file"
    FILLS_AND_DRAINS = "fills_and_drains"
    GPU_BUSY = "gpu_busy"
    GRADIENTS_PCT = "gradients_pct"
    GRADIENT_COLLECTIVES = "gradient_collectives"
    GREW = "grew"
    GROWTH = "growth"
    HELD_BY_ONE_THING = "held_by_one_thing"
    HELD_IN = "held_in"
    HOST_IN = "host_in"
    HOST_IN_THEM = "host_in_them"
    HOST_IN_THESE_COPIES = "host_in_these_copies"
    HOST_LONGER_IN = "host_longer_in"
    IN_COMMON = "in_common"
    IN_OPERATORS = "in_operators"
    ITS_DEVICE_IDLE_MEANWHILE = "its_device_idle_meanwhile"
    IT_SAYS = "it_says"
    KERNEL = "kernel"
    KERNELS = "kernels"
    KERNELS_KNOWN_AS_COMMUNICATION = "kernels_known_as_communication"
    KERNELS_REMOVED = "kernels_removed"
    KERNELS_SAVED = "kernels_saved"
    KERNELS_THAT_NO_PEER_RUNS = "kernels_that_no_peer_runs"
    KERNELS_TIME = "kernels_time"
    LARGE_MESSAGES = "large_messages"
    LATE_STEP = "late_step"
    LATE_STEPS = "late_steps"
    LINE = "line"
    LINKS_BY_NCCL = "links_by_nccl"
    LINK_FROM_PINNED_MEMORY = "link_from_pinned_memory"
    LOADER_WORKERS_BUSY = "loader_workers_busy"
    LOADING_BY_ONE_PROCESS = "loading_by_one_process"
    LOADING_OF_A_BATCH_BY_THE_WORKERS = "loading_of_a_batch_by_the_workers"
    LONGER = "longer"
    LONGER_THAN_IN_SIBLINGS = "longer_than_in_siblings"
    LONGER_THAN_THE_OTHERS = "longer_than_the_others"
    LONGEST_STEP = "longest_step"
    LOOKS = "looks"
    MACHINE = "machine"
    MACHINE_NUMBER = "machine_number"
    MEDIAN_SIZE = "median_size"
    MEMORY = "memory"
    MESSAGE = "message"
    METRIC = "metric"
    METRIC_CHANGE = "metric_change"
    MICRO_BATCHES = "micro_batches"
    MORE_MEMORY = "more_memory"
    MOST_HELD = "most_held"
    NCCL = "nccl"
    NCCL_RINGS = "nccl_rings"
    NCCL_TESTS = "nccl_tests"
    NEAREST_NICS = "nearest_nics"
    NOT_USED = "not_used"
    NO_CORE_WHEN_WANTED = "no_core_when_wanted"
    NO_STEP_FINISHED_FOR = "no_step_finished_for"
    NVLINKS_DOWN = "nvlinks_down"
    OF_GPU = "of_gpu"
    OF_ITS_BLOCKS_TO_MOVE = "of_its_blocks_to_move"
    OF_REFERENCE = "of_reference"
    OF_ROLE = "of_role"
    OF_RUN = "of_run"
    OF_STEP = "of_step"
    OF_STEP_SHARED_EVENLY = "of_step_shared_evenly"
    OF_TIME = "of_time"
    OPERATOR = "operator"
    OPERATOR_TIME = "operator_time"
    OPTIMIZER_STEP = "optimizer_step"
    OTHER = "other"
    OTHER_LOADER = "other_loader"
    OVERLAP_PCT = "overlap_pct"
    OWN_TIME_PER_CALL = "own_time_per_call"
    PAIR = "pair"
    PAIRS_OF_GPUS_ACROSS_NUMA_NODES = "pairs_of_gpus_across_numa_nodes"
    PAIRS_OF_RANKS_OVER_SOCKETS = "pairs_of_ranks_over_sockets"
    PAIRS_OF_RANKS_WITHOUT_P2P = "pairs_of_ranks_without_p2p"
    PAIRS_THAT_ARE_NARROWER_ONE_WAY = "pairs_that_are_narrower_one_way"
    PATH_TO_THE_NEAREST_NIC = "path_to_the_nearest_nic"
    PATH_TO_THE_NIC_IN_USE = "path_to_the_nic_in_use"
    PEAK = "peak"
    PID = "pid"
    PLAIN_SAVED = "plain_saved"
    PLAIN_STEP = "plain_step"
    PLAIN_WAIT = "plain_wait"
    POWER = "power"
    PROFILED_BY_UNPROFILED = "profiled_by_unprofiled"
    PROFILED_STEP = "profiled_step"
    PROMISED_BY = "promised_by"
    P_VALUE = "p_value"
    RANKS = "ranks"
    RANKS_WITHOUT_A_TRACE = "ranks_without_a_trace"
    RANKS_WITHOUT_GPU_ACTIVITY = "ranks_without_gpu_activity"
    REASON = "reason"
    RECORDED = "recorded"
    RECORDING_AT_MOST = "recording_at_most"
    REFERENCE = "reference"
    RESERVED = "reserved"
    RESERVED_BY_HELD = "reserved_by_held"
    RETRIES = "retries"
    SAVED_AT_PEERS_PACE = "saved_at_peers_pace"
    SAVED_AT_PEERS_PACE_TOO = "saved_at_peers_pace_too"
    SAVED_AT_REFERENCE = "saved_at_reference"
    SAVED_AT_REFERENCE_AND_NO_HOST_LATE = "saved_at_reference_and_no_host_late"
    SAVED_AT_THE_OTHERS_PACE = "saved_at_the_others_pace"
    SAVED_AT_THEIR_PACE = "saved_at_their_pace"
    SAVED_BY_EVEN_STAGES = "saved_by_even_stages"
    SAVED_FROM_PINNED = "saved_from_pinned"
    SAVED_IN_A_LATE_STEP = "saved_in_a_late_step"
    SAVED_WITHOUT_IT = "saved_without_it"
    SAVED_WITHOUT_IT_AND_NO_HOST_LATE = "saved_without_it_and_no_host_late"
    SAVED_WITH_BATCHES_IN_TIME = "saved_with_batches_in_time"
    SAVED_WITH_NCCL = "saved_with_nccl"
    SAVED_WITH_THE_OTHERS_TOO = "saved_with_the_others_too"
    SAVED_WITH_THE_WORK_SHARED_EVENLY = "saved_with_the_work_shared_evenly"
    SEEN_AS = "seen_as"
    SHARE_OF_ALL_WAITING = "share_of_all_waiting"
    SLOWEST_NEARER_PAIR = "slowest_nearer_pair"
    SLOWEST_PAIR_ACROSS_NODES = "slowest_pair_across_nodes"
    SLOW_PAIRS = "slow_pairs"
    SMALL_COLLECTIVES = "small_collectives"
    SPREAD_OF_ALIGNED_ENDS_MEDIAN = "spread_of_aligned_ends_median"
    SPREAD_OF_ALIGNED_ENDS_P95 = "spread_of_aligned_ends_p95"
    STAYS = "stays"
    STEP = "step"
    STEPS = "steps"
    STEPS_OF_THE_PROGRAM = "steps_of_the_program"
    STEPS_SYNCHRONISED_INSIDE_BACKWARD = "steps_synchronised_inside_backward"
    STEP_BEFORE_THE_WINDOWS = "step_before_the_windows"
    STEP_BEHIND_BY_BEFORE = "step_behind_by_before"
    STEP_BEHIND_THE_WINDOWS = "step_behind_the_windows"
    STEP_WITHOUT_INPUT = "step_without_input"
    SUCH_STEPS = "such_steps"
    TAKEN = "taken"
    TEMPERATURE = "temperature"
    THEIR_SPEED = "their_speed"
    THE_OTHERS_WAIT = "the_others_wait"
    TIMES_AS_MANY_WORKERS = "times_as_many_workers"
    TIMES_IN = "times_in"
    TIME_FOR_SAME_KERNELS = "time_for_same_kernels"
    TIME_IN_DATA_LOADING = "time_in_data_loading"
    TIME_OF_A_SMALL_MESSAGE = "time_of_a_small_message"
    TIME_OF_SUCH_CALLS = "time_of_such_calls"
    TIME_OF_THE_SMALLEST_MESSAGE = "time_of_the_smallest_message"
    TOOK = "took"
    TOPOLOGY = "topology"
    TRANSFER = "transfer"
    TRANSFER_AFTER_BACKWARD = "transfer_after_backward"
    TRANSFER_OF_SIBLINGS = "transfer_of_siblings"
    TRANSFER_OF_THEM = "transfer_of_them"
    TRIAL = "trial"
    TYPICAL_STEP = "typical_step"
    UNPROFILED_STEP = "unprofiled_step"
    WAITING_FOR_IT = "waiting_for_it"
    WAITING_RANKS = "waiting_ranks"
    WAITS_FOR_A_CORE = "waits_for_a_core"
    WAITS_FOR_A_CORE_BEYOND_ITS_PEERS = "waits_for_a_core_beyond_its_peers"
    WAITS_FOR_A_SLOWER_STAGE = "waits_for_a_slower_stage"
    WAITS_FOR_CORE_BEYOND_TYPICAL = "waits_for_core_beyond_typical"
    WAITS_FOR_INPUT_BEHIND_LATE_RANKS = "waits_for_input_behind_late_ranks"
    WAITS_FOR_LATE_SENDS = "waits_for_late_sends"
    WHOLE_STEPS = "whole_steps"
    WIDTH = "width"
    WITH_FEWEST_CALLS = "with_fewest_calls"
    WORKERS_IN = "workers_in"
    WORKERS_THAT_KEEP_UP = "workers_that_keep_up"
    WORK_OF_A_STAGE = "work_of_a_stage"
    WORK_OF_ITS_PEERS = "work_of_its_peers"
    WORK_OF_THE_SAME_STAGE = "work_of_the_same_stage"
    WORST_OF_THEM = "worst_of_them"
    WRONG_VALUES = "wrong_values"


def label_of(fact: Fact, subject: str = "") -> str:
    """What a reader calls it: 'waiting for it', 'host in forward (train.py:41)'."""
    return texts("facts")[fact.value].replace("{subject}", subject)


def fact_of(label: str) -> tuple[Fact, str]:
    """The fact with this label and its subject, for reports of a traceops that kept labels only."""
    exact, begun = _by_label()
    if label in exact:
        return exact[label], ""
    if label in BUCKETS:
        return Fact.BUCKET, label
    for before, behind, fact in begun:
        if label.startswith(before) and label.endswith(behind) and len(label) > len(before) + len(behind):
            return fact, label[len(before) : len(label) - len(behind)]
    return Fact.OTHER, label


def with_facts(findings: list[Any]) -> list[Any]:
    """Findings of a JSON document whose numbers say what they are; earlier versions kept their labels only."""
    return [
        {**one, "evidence": [_with_fact(row) for row in one["evidence"]]}
        if isinstance(one, dict) and isinstance(one.get("evidence"), list)
        else one
        for one in findings
    ]


def _with_fact(evidence: Any) -> Any:
    if not isinstance(evidence, dict) or "fact" in evidence or not isinstance(evidence.get("metric"), str):
        return evidence
    fact, subject = fact_of(evidence["metric"])
    return {**evidence, "fact": fact.value, **({"subject": subject} if subject else {})}


@cache
def _by_label() -> tuple[dict[str, Fact], list[tuple[str, str, Fact]]]:
    """Labels without a subject; and what stands before and behind one, the most words first."""
    exact, begun = dict[str, Fact](), list[tuple[str, str, Fact]]()
    for key, label in (*texts("facts").items(), *texts("facts", "earlier").items()):
        before, subject, behind = label.partition("{subject}")
        if not subject:
            exact.setdefault(label, Fact(key))
        elif before or behind:
            begun.append((before, behind, Fact(key)))
    return exact, sorted(begun, key=lambda one: -len(one[0]) - len(one[1]))
