"""Is it a sound strategy? One test for each check."""

from growbench.conformance.pytest_plugin import growbench_checks

test_spread = growbench_checks("spread")
