"""Reports as pages, tables and texts: one renderer a file format."""
