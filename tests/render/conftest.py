"""Puts this folder on the path, so that tests below it can import its samples."""
