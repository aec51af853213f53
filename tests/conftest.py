"""Puts this folder on the path, so that tests in every folder can import generated_run."""
