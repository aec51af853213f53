"""What the built-in runner trains: its options, the model and the data."""
