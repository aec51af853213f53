"""Several runs side by side: page, table, CSV and JSON."""
