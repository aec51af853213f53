"""What users of five earlier tools do, as rows that are played."""
