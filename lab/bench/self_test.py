"""Shows within seconds that the benchmark's readers and its judgement distinguish correct results from incorrect ones.

    self_test.py"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

if __name__ == "__main__":
    unittest.main(module=None, argv=["self_test.py", "test_readings", "test_scrapes", "test_judgement"])
