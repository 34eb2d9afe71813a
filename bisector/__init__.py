"""Finds the commit that moved a training trajectory."""

__version__ = "0.1.0"
