"""One identity's mount: the only package that imports pyfuse3. It imports wire and model, nothing else of ours but errors."""
