"""Shows within seconds that the benchmark's readers and its judgement distinguish correct results from incorrect ones.

    self_test.py"""

import unittest

if __name__ == "__main__":
    unittest.main(module=None, argv=["self_test.py", "test_readings", "test_scrapes", "test_judgement"])
