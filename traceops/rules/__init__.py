"""The rules: what each means, and the functions that judge it."""
