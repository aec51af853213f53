"""Across ranks: which event on one rank is the same collective as which on another."""
