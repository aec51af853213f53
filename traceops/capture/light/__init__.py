"""A light window: what the device does in a few steps, recorded without the host's part."""
