"""The version of the stand-in."""

import os

cuda = None if os.environ.get("STANDIN_HIP") == "1" else "13.0"
hip = "6.0" if os.environ.get("STANDIN_HIP") == "1" else None
