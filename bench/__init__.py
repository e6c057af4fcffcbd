"""Measurements. `python -m bench` runs the same work, in one run, on a mount and on a plain copy."""
