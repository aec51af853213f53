"""TO-P: what is wrong with the links between GPUs and hosts, from what NCCL and others said of them."""
