"""The names of NCCL's, torch's and Gloo's environment variables: which are known, mistyped, or from before nccl.env."""

import re
from difflib import get_close_matches
from typing import Any

PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "OFI_NCCL_")
# Spelling is checked against these: docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (2.28) and
# docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html (2.11). Other names are set as they are.
_DOCUMENTED = """
    NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC NCCL_SOCKET_NTHREADS
    NCCL_NSOCKS_PERTHREAD NCCL_SOCKET_POLL_TIMEOUT_MSEC NCCL_CROSS_NIC NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT
    NCCL_IB_GID_INDEX NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL NCCL_IB_TC
    NCCL_IB_FIFO_TC NCCL_IB_RETURN_ASYNC_EVENTS NCCL_OOB_NET_ENABLE NCCL_OOB_NET_IFNAME NCCL_UID_STAGGER_THRESHOLD
    NCCL_UID_STAGGER_RATE NCCL_NET NCCL_NET_PLUGIN NCCL_NET_PLUGIN_REF_COUNT NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN
    NCCL_ENV_PLUGIN NCCL_IGNORE_CPU_AFFINITY NCCL_CONF_FILE NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS
    NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_COLLNET_ENABLE NCCL_COLLNET_NODE_THRESHOLD
    NCCL_CTA_POLICY NCCL_NETDEVS_POLICY NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_NVB_DISABLE NCCL_PXN_DISABLE
    NCCL_P2P_PXN_LEVEL NCCL_RUNTIME_CONNECT NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER NCCL_LEGACY_CUDA_REGISTER
    NCCL_WIN_ENABLE NCCL_SET_STACK_SIZE NCCL_GRAPH_MIXING_SUPPORT NCCL_DMABUF_ENABLE NCCL_P2P_NET_CHUNKSIZE
    NCCL_P2P_LL_THRESHOLD NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_COMM_BLOCKING NCCL_CGA_CLUSTER_SIZE NCCL_MAX_CTAS
    NCCL_MIN_CTAS NCCL_NVLS_ENABLE NCCL_IB_MERGE_NICS NCCL_MNNVL_ENABLE NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID
    NCCL_RAS_ENABLE NCCL_RAS_ADDR NCCL_RAS_TIMEOUT_FACTOR NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL
    NCCL_IPC_USE_ABSTRACT_SOCKET NCCL_SYM_CTAS NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_DIRECT_DISABLE
    NCCL_SHM_DISABLE NCCL_BUFFSIZE NCCL_NTHREADS NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_CHECKS_DISABLE
    NCCL_CHECK_POINTERS NCCL_LAUNCH_MODE NCCL_IB_DISABLE NCCL_IB_AR_THRESHOLD NCCL_IB_QPS_PER_CONNECTION
    NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_CUDA_SUPPORT NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_ADAPTIVE_ROUTING
    NCCL_IB_ECE_ENABLE NCCL_MEM_SYNC_DOMAIN NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_NET_GDR_LEVEL
    NCCL_NET_GDR_READ NCCL_NET_GDR_C2C NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_SINGLE_RING_THRESHOLD
    NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD NCCL_ALGO NCCL_PROTO NCCL_NVLS_CHUNKSIZE NCCL_HOSTID NCCL_COMM_ID
    NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG NCCL_ENABLE_TIMING
    TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DUMP_ON_TIMEOUT
    TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_COORD_CHECK_MILSEC
    TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE
    TORCH_NCCL_NAN_CHECK TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_CUDA_EVENT_CACHE
    TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT
    GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT
"""
KNOWN_NAMES = frozenset(_DOCUMENTED.split())
OLD_NAMES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT": "NCCL_BLOCKING_WAIT",
}  # torch still reads the old one, and prefers the new one


def validate(name: str, value: Any) -> list[str]:
    """Return an error for a name of another library, and for one that differs from a known one by a letter or two."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not name.startswith(PREFIXES):
        known = ", ".join(f"{prefix}..." for prefix in PREFIXES)
        upper = name.upper()
        hint = (
            f"set nccl.env.{upper}={_example(value)}" if upper in KNOWN_NAMES else "leave it out, and export it instead"
        )
        return [f"nccl.env.{name} must be a variable of NCCL, Gloo or libfabric ({known}). Hint: {hint}."]
    near = [] if name in KNOWN_NAMES else get_close_matches(name, KNOWN_NAMES, 1, 0.9)
    if not near:
        return []
    return [
        f"nccl.env.{name} is not a known variable. Hint: did you mean nccl.env.{near[0]}={_example(value)}? "
        f"If {name} is right, export it before the command."
    ]


def answer(key: str, where: str = "", value: Any = None) -> str | None:
    """Name what to type for a key directly under nccl., as there was one for each variable; None for other keys.

    nccl.ib_disable=true is nccl.env.NCCL_IB_DISABLE=1. where: " (in experiment/mine.yaml)".
    """
    parent, _, name = key.rpartition(".")
    if parent != "nccl" or not re.fullmatch(r"\w+", name):
        return None
    variable = name.upper() if name.upper().startswith(PREFIXES) else f"NCCL_{name.upper()}"
    variable = next((new for new, old in OLD_NAMES.items() if old == variable), variable)
    return f"{key} is not a key{where}: variables have their own names. Hint: nccl.env.{variable}={_example(value)}"


def as_text(value: Any) -> str:
    """Format as the libraries read it: 1 and 0 for true and false."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _example(value: Any) -> str:
    return "1" if value is None or not isinstance(value, str | int | float) else as_text(value)
