"""Outside the training: what torchrun is told, what goes wrong there, and what becomes of the ranks."""
