"""Stands in for wandb where a program imports it and does not use it."""
