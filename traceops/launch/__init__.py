"""The launcher: torchrun's arguments, its failures, and how the ranks ended."""
