"""How the GPUs, NICs and CPUs of machines hang together, which way NCCL went, and what is wrong with it."""
