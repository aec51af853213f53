"""This folder stands first on the PYTHONPATH of a command under ``traceops run --launcher none``."""
