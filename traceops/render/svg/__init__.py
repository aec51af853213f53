"""Figures in plotly's JSON schema drawn as SVG in Python, so that a page shows them without a script."""
