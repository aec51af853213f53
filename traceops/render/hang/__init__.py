"""The diagnosis of a hang in each format."""
