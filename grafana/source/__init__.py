"""The dashboards: one file for each, built with queries.py, grid.py and panels.py."""
