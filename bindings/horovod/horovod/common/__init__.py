"""Modules that all frameworks share."""
