"""Shows in seconds that what the harness reads and judges with can tell right from wrong.

    self_test.py"""

import unittest

if __name__ == "__main__":
    unittest.main(module=None, argv=["self_test.py", "test_readings", "test_scrapes", "test_judgement"])
