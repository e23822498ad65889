"""Interactions: reading, named sets, splitting, describing. Knows nothing of learning.

Nothing is imported here, so that a command which needs one module does not wait for the others.
"""
