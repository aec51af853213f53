"""Stands in for flash_attn, which has to be compiled: for picotron, which imports it and does not call it here."""
