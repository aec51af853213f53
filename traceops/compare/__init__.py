"""Whether one run is slower than another, by how much, how sure that is, and why."""
