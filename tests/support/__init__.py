"""Helpers of the tests; each module says what it is for."""
