"""A checkup in each format."""
