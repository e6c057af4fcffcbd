"""What pyproject.toml cannot say: the C part of fast mode, its flags, and that it may be left out.

Where it cannot be built the package installs all the same, with a warning in the build's output; mounts then
work the stock way, slower, and say so. Only libfuse's headers are needed: the C part looks its functions up
in the libfuse that pyfuse3 is linked with.
"""

from __future__ import annotations

import subprocess

from setuptools import Extension, setup


def header_flags() -> list[str]:
    """Return where libfuse's headers are; nothing where nobody knows, and the compiler says what is missing."""
    command = ["pkg-config", "--cflags", "fuse3"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []


setup(
    ext_modules=[
        Extension(
            "chromafuse.view._fast",
            ["chromafuse/view/_fast.c"],
            extra_compile_args=["-Wall", "-Wextra", *header_flags()],
            libraries=["dl"],  # part of libc since glibc 2.34
            optional=True,
        )
    ]
)
