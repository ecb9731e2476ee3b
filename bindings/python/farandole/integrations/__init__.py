"""Integrations with other job systems: kubernetes, ray, spark and dask. The last three share `ranks`.

They stand on the rest of farandole, which does not import them. Each is imported by itself.
"""
