"""The map over ranks: which processes run it, the files and the cache that keep its results, and its progress."""
