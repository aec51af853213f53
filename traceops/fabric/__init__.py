"""How the GPUs, NICs and CPUs of machines are connected, and which transports NCCL used."""
