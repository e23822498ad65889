"""federec: recommenders trained where the data lives."""
