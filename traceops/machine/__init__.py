"""Reads facts about a host from programs, files and variables. Judges nothing."""
