"""Nouns, words, units and errors that every other package uses."""
