"""The rules of the fabric: what links give, and what is wrong with the machine's topology."""

from __future__ import annotations

from traceops.core.rule import Rule

FABRIC_RULES: tuple[Rule, ...] = (
    Rule(
        "TO-C001",
        "A group's bus bandwidth is far below what its link should give",
        "Find out which path NCCL took (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH: `via P2P`, `via SHM`, `via "
        "NET/Socket`), look for NCCL_P2P_DISABLE or NCCL_SHM_DISABLE in the environment, for containers without access "
        "to the peers' devices, and at `nvidia-smi topo -m` and `nvidia-smi nvlink -s`. `traceops doctor` tests it "
        "all.",
        True,
        "Bus bandwidth of messages of 8 MB and more, median, against a reference: measured on that host by `traceops "
        "doctor`, else NCCL's own expectation in its log, else what NCCL reaches over the NVLink of that GPU inside "
        "one host. Warning where the time at the reference, with 20 µs for latency, is below 30 % of the time taken, "
        "error below 10 %, info where the reference would save less than 2 % of the step. Not judged where none of "
        "the three is known: between hosts without a log, and for GPUs without NVLink.",
    ),
    Rule(
        "TO-C002",
        "Some groups or pairs are far slower than their peers",
        "Compare the slow ranks' links with the others': width and speed (nvidia-smi nvlink -s, lspci -vv), the NIC "
        "they use, cables and switch ports, other jobs on that path.",
        True,
        "Fires where a group transfers the same operation on the same bytes (1 MB or more) at least twice as slowly "
        "as the median of its sibling groups.",
    ),
    Rule(
        "TO-P001",
        "GPU pairs talk across NUMA nodes",
        "Use GPUs of one node where the job needs fewer than there are (CUDA_VISIBLE_DEVICES), bind each rank to its "
        "GPU's cores (numactl, torchrun's --numa-binding), and measure P2P (NCCL_P2P_LEVEL=SYS) against host memory "
        "(NCCL_P2P_DISABLE=1) with `traceops doctor`.",
        True,
        "From the topology (nvidia-smi topo -m, NCCL's XML or log): the path is SYS. Slow, and no proof of anything by "
        "itself: info; warning where ranks hang in a collective, 20 % of the step is exposed transfer, or the "
        "bandwidth is far below its reference.",
    ),
    Rule(
        "TO-P002",
        "NVLink or P2P is there but not used",
        "Remove NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE from the environment (also from /etc/nccl.conf "
        "and ~/.nccl.conf); give containers all GPUs and --ipc=host; on bare metal look for IOMMU and ACS; "
        "`traceops doctor` measures the difference.",
        True,
        "From NCCL's log: ranks of one host that talk via SHM or NET, where the topology or the GPU's name says that "
        "NVLink connects them, or P2P was switched off: warning, as severe as TO-C001 where the traces show it. GPUs "
        "at the same PCIe switches: info.",
    ),
    Rule(
        "TO-P003",
        "NCCL's network failed to start or fell back to sockets",
        "Unset what chooses the network (NCCL_SOCKET_IFNAME, NCCL_NET, NCCL_IB_HCA, NCCL_P2P_DISABLE) if the log says "
        "it was set. Else look at the lines around the quoted ones (NCCL_DEBUG_SUBSYS=INIT,NET): libnccl-net.so, "
        "libibverbs and libfabric must be found inside the container, /dev/infiniband be mapped into it, and the "
        "memory lock limit be unlimited; for EFA the security group must let the nodes reach each other.",
        True,
        "From NCCL's log: connections via NET/Socket, or a network plugin that was found and did not start. Error "
        "where nothing could connect, or a plugin failed and hosts talk over sockets; warning between GPUs of one "
        "host, or where a fast network is there or was switched off; info where nothing tells of a faster one. A host "
        "without any fast network is no finding.",
    ),
    Rule(
        "TO-P004",
        "The NIC in use is far from its GPU",
        "Let NCCL choose (remove NCCL_IB_HCA), or name the NICs near the GPUs in it; in virtual machines and "
        "containers NCCL may not see the PCIe tree: give it one with NCCL_TOPO_FILE.",
        True,
        "From NCCL's log and a topology: a rank sends through a NIC that is farther from its GPU, or from the GPU "
        "that sends for it (PXN), than another one of the same network and speed: warning across NUMA nodes, info "
        "else and where NCCL does not list the nearer one and no NCCL_IB_HCA keeps it from it.",
    ),
    Rule(
        "TO-P005",
        "A link is narrower or slower than its siblings",
        "Reseat the device or its riser, look at the slot's wiring and the BIOS, and for NVLink at `nvidia-smi nvlink "
        "-s` and `-e` (errors); a reset of the GPU may bring a link back. Until then leave that GPU out.",
        True,
        "PCIe width, reachable PCIe generation, number and speed of NVLinks, speed of fast NICs: below what most "
        "devices of that name on the host have. Info where the slot allows no more lanes. NICs count with "
        "those as near to a GPU. A GPU without NVLink counts where others reach several GPUs, not where bridges join "
        "them two by two.",
    ),
)
