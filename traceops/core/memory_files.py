"""What a rank's folder holds of its GPU's memory: names of the files, and what one of them tells.

``rank_<r>/out_of_memory.json``: where memory ran out last, a JSON object. step; device: index; asked_bytes,
total_bytes: of the device, or what the process allowed itself of it; free_bytes: of the device; allocated_bytes: that
tensors held; reserved_bytes: that torch held; retries: requests that fitted only after the cache was emptied; history:
whether stacks were recorded; held: bytes by what they are (parameters, gradients, optimizer_state), null where that
could not be told. The snapshots are pickles as torch.cuda.memory._dump_snapshot writes them.
"""

from __future__ import annotations

RAN_OUT = "out_of_memory.json"
OUT_OF_MEMORY = "out_of_memory.pickle"  # the snapshot of that moment
SNAPSHOT = "memory.pickle"  # at the end of a window, or on demand
HELD = ("parameters", "gradients", "optimizer_state")
