"""Out of GPU memory while another library in the same process holds a third of the GPU.

CuPy's pool is not torch's: the driver counts it to this process, and torch's allocator does not know it.
"""

import cupy  # type: ignore[import-not-found, unused-ignore]
import torch

free, total = torch.cuda.mem_get_info()
kept = cupy.zeros(int(0.35 * total), dtype=cupy.uint8)
weights = [torch.zeros(int(0.1 * total), dtype=torch.uint8, device="cuda") for _ in range(4)]
print(f"cupy holds {kept.nbytes >> 20} MiB, torch {torch.cuda.memory_allocated() >> 20} MiB", flush=True)
activations = [torch.zeros(int(0.1 * total), dtype=torch.uint8, device="cuda") for _ in range(8)]
