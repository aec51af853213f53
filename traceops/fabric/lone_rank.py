"""Environment variables with which one rank alone looks for no network.

It has nobody to talk to, but NCCL and gloo look for a network all the same: what is wrong with that need not
concern it.
"""

from __future__ import annotations

SET = {"NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1"}
UNSET = ("NCCL_SOCKET_IFNAME", "NCCL_NET", "GLOO_SOCKET_IFNAME")
