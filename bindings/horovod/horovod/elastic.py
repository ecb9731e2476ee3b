"""Elastic jobs without a framework: run, State, ObjectState."""

from farandole.elastic import ObjectState, State, run  # noqa: F401
