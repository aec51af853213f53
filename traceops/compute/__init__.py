"""What one rank's kernels do, what that work could take on their GPU, and why it takes longer."""
