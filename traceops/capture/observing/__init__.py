"""What a rank does while nothing is recorded: every step's time, and where its host is."""
