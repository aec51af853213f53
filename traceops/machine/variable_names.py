"""All variables the doctor knows, names that were changed, and names that nothing reads."""

from __future__ import annotations

from traceops.machine.variable import Variable
from traceops.machine.variable_names_nccl import NCCL
from traceops.machine.variable_names_torch import OFI, TORCH

VARIABLES: dict[str, Variable] = {variable.name: variable for variable in (*NCCL, *TORCH, *OFI)}

# Old name: (new name, since which version of torch or NCCL the new one is right).
RENAMED: dict[str, tuple[str, str]] = {
    "NCCL_ASYNC_ERROR_HANDLING": ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "torch 2.2"),
    "NCCL_BLOCKING_WAIT": ("TORCH_NCCL_BLOCKING_WAIT", "torch 2.2"),
    "NCCL_DESYNC_DEBUG": ("TORCH_NCCL_DESYNC_DEBUG", "torch 2.2"),
    "NCCL_ENABLE_TIMING": ("TORCH_NCCL_ENABLE_TIMING", "torch 2.2"),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "torch 2.2"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("TORCH_FR_BUFFER_SIZE", "torch 2.9"),
    "TORCH_NCCL_TRACE_CPP_STACK": ("TORCH_FR_CPP_STACK", "torch 2.9"),
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": ("TORCH_FR_DUMP_TEMP_FILE", "torch 2.9"),
    "NCCL_IB_GDR_LEVEL": ("NCCL_NET_GDR_LEVEL", "NCCL 2.4"),
    "NCCL_IB_CUDA_SUPPORT": ("NCCL_NET_GDR_LEVEL", "NCCL 2.4"),
    "NCCL_MAX_NRINGS": ("NCCL_MAX_CTAS", "NCCL 2.17"),
    "NCCL_MIN_NRINGS": ("NCCL_MIN_CTAS", "NCCL 2.17"),
    "NCCL_MAX_NCHANNELS": ("NCCL_MAX_CTAS", "NCCL 2.17"),
    "NCCL_MIN_NCHANNELS": ("NCCL_MIN_CTAS", "NCCL 2.17"),
    "NCCL_CHECKS_DISABLE": ("NCCL_CHECK_POINTERS", "NCCL 2.2"),
    "NCCL_LL_THRESHOLD": ("NCCL_PROTO", "NCCL 2.5"),
    "NCCL_TREE_THRESHOLD": ("NCCL_ALGO", "NCCL 2.5"),
    "NCCL_RINGS": ("NCCL_GRAPH_FILE", "NCCL 2.5"),
    "NCCL_MNNVL": ("NCCL_MNNVL_ENABLE", "NCCL 2.21"),
    "OFI_NCCL_RDMA_MIN_POSTED_BOUNCE_BUFFERS": ("OFI_NCCL_RDMA_MIN_POSTED_EAGER_BUFFERS", "aws-ofi-nccl 1.14"),
    "OFI_NCCL_RDMA_MAX_POSTED_BOUNCE_BUFFERS": ("OFI_NCCL_RDMA_MAX_POSTED_EAGER_BUFFERS", "aws-ofi-nccl 1.14"),
}

# Names that training scripts carry along though neither NCCL nor torch reads them: what to do instead.
READ_BY_NOTHING: dict[str, str] = {
    "NCCL_TIMEOUT": "pass timeout= to torch.distributed.init_process_group",
    "TORCH_NCCL_TIMEOUT": "pass timeout= to torch.distributed.init_process_group",
    "TORCH_DISTRIBUTED_TIMEOUT": "pass timeout= to torch.distributed.init_process_group",
    "NCCL_SOCKET_TIMEOUT": "NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC say how long it tries",
    "NCCL_DETERMINISTIC": "a fixed NCCL_ALGO and NCCL_PROTO make sums come out the same",
    "NCCL_TREE_ENABLE": "NCCL_ALGO says which algorithms may be used",
    "NCCL_TREE_DISABLE": "NCCL_ALGO=^Tree leaves trees out",
    "NCCL_NVLINK_DISABLE": "NCCL_P2P_DISABLE=1 is what turns NVLink off",
    "NCCL_NVLS_DISABLE": "NCCL_NVLS_ENABLE=0 is what turns it off",
    "NCCL_IB_ENABLE": "InfiniBand is used where it is there; NCCL_IB_DISABLE=1 turns it off",
    "NCCL_P2P_ENABLE": "P2P is used where it works; NCCL_P2P_DISABLE=1 turns it off",
    "NCCL_SHM_ENABLE": "shared memory is used where it works; NCCL_SHM_DISABLE=1 turns it off",
    "NCCL_SOCKET_DISABLE": "NCCL_NET names the network to use",
}

# Set by images and build scripts; they steer nothing at run time.
# fmt: off
OF_NO_CONCERN = frozenset({
    "NCCL_VERSION", "NCCL_VER", "NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR", "NCCL_DIR", "NCCL_PATH", "NCCL_INCLUDE_DIR",
    "NCCL_INCLUDE_DIRS", "NCCL_LIB_DIR", "NCCL_LIB", "NCCL_LIBS", "NCCL_LIBRARY", "NCCL_LIBRARIES", "NCCL_SRC_DIR",
    "NCCL_INSTALL_PATH", "NCCL_BUILD_DIR", "NCCL_TESTS_HOME", "NCCL_TESTS_PATH", "NCCL_TESTS_VERSION", "NCCL_STATIC",
    "NCCL_USE_STATIC", "NCCL_PLUGIN_PATH", "NCCL_HEADER_VERSION",
})
# fmt: on

FAMILIES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_", "OFI_NCCL_")
