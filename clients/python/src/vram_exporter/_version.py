"""The version of the distribution; pyproject.toml has the same one, and a test compares them."""

__version__ = "0.1.0"
