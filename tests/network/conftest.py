from tests.runtimes.flower.conftest import federation

__all__ = ["federation"]
