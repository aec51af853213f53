"""A Document in one format each: HTML, terminal, Markdown, CSV."""
