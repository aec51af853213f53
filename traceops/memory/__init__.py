"""What a training needs of a GPU's memory: estimated before the run, and read from torch's snapshots."""
