"""Helpers of the launcher that programs import."""
