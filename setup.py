"""Builds the kernels, each `.pyx` below `_kernels`: as many at once as there are processors, which is half of the set-up's time.

Cython translates them in processes of their own, as it is not made for threads; then C compilers run side by side. All else
of a build is in pyproject.toml.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# scripts/asan has others.
_FLAGS = os.environ.get("SPILLWAY_KERNEL_FLAGS", "-O3").split()
_AT_ONCE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

setup(
    ext_modules=cythonize(
        [
            Extension(f"spillway._kernels.{path.stem}", [str(path)], extra_compile_args=_FLAGS)
            for path in sorted(Path("services/spillway/_kernels").glob("*.pyx"))
        ],
        # Not beside the sources: whatever is in the package gets into the wheel.
        build_dir="build/cython",
        nthreads=_AT_ONCE,
        quiet=True,
    ),
    options={"build_ext": {"parallel": _AT_ONCE}},
)
