"""One identity's mount, and the only package that imports pyfuse3. Of ours: wire, model, errors."""
