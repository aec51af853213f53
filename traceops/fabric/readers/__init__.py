"""Reads what topology tools and NCCL wrote."""
