"""The dashboards: one file for each, on the words of queries.py, grid.py and panels.py."""
