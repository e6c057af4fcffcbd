"""Documentation collections in Chroma, mounted as read-only directories, one identity a mount."""

__version__ = "0.1.0"
