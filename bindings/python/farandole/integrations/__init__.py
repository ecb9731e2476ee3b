"""Integrations with other job systems: farandole.integrations.kubernetes and farandole.integrations.ray.

They stand on the rest of farandole, which does not import them. Each is imported by itself.
"""
