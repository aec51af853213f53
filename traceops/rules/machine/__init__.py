"""TO-D: what is wrong with a machine, from what was read of it."""
