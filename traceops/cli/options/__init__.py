"""What each command takes: a module a command, read for `--help` and so free of heavy imports."""
