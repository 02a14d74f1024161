"""Shared suites fail with the values of their assertions, as tests in test files do."""

import pytest

pytest.register_assert_rewrite("tests.contract.store_contract")
