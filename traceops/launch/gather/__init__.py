"""`traceops run --gather`: one run folder of nodes that share no file system, sent to the first node's launcher."""
