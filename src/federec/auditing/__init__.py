"""Attacks of a curious server on a run: which items of a user it can name, and how much of epsilon shows."""
