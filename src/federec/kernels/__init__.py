"""Fused inner loops: draw, shuffle, train and score a device in one pass. Each has a plain-torch twin."""
