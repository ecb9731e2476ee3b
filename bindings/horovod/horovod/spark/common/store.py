"""Stores of estimators, under the names that programs import."""

from farandole.integrations.spark.store import HDFSStore, LocalStore, Store  # noqa: F401
