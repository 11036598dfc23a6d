"""Builds the kernels, each `.pyx` below `_kernels`: as many at once as there are processors, which
is half of the set-up's time.

Cython translates them in processes of their own, as it is not made for threads; then C compilers
run side by side. All else of a build is in pyproject.toml.

Whoever runs a build shows nothing of it until it fails, and it takes a minute or two: the file that
SPILLWAY_BUILD_PROGRESS names, if it does, gets a line now and then, which scripts/install prints.
"""

import os
import threading
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# scripts/asan has others. Python's own flags ask for what debuggers need, a fifth of the time.
_FLAGS = os.environ.get("SPILLWAY_KERNEL_FLAGS", "-O3 -g0").split()
_AT_ONCE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
#: Lines about compiling, at most.
_LINES = 5


def _tell(text: str) -> None:
    file = os.environ.get("SPILLWAY_BUILD_PROGRESS")
    if file:
        with Path(file).open("a") as progress:
            progress.write(f"install:   {text}\n")


class _BuildKernels(build_ext):
    """Compiles kernels by threads side by side, and counts them."""

    _counting = threading.Lock()
    _done = 0

    def finalize_options(self) -> None:
        super().finalize_options()
        # Not by `options` of setup(): an editable build makes its command anew without them.
        self.parallel = self.parallel or _AT_ONCE

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        with self._counting:
            self._done += 1
            done, count = self._done, len(self.extensions)
            if done == count or done % max(1, -(-count // _LINES)) == 0:
                _tell(f"kernels: {done} of {count} compiled")


_SOURCES = Path("services")
_KERNELS = [
    Extension(
        ".".join(path.relative_to(_SOURCES).with_suffix("").parts),
        [str(path)],
        extra_compile_args=_FLAGS,
    )
    for path in sorted((_SOURCES / "spillway" / "_kernels").rglob("*.pyx"))
]
_tell(f"kernels: translating {len(_KERNELS)}, {_AT_ONCE} at once")
setup(
    ext_modules=cythonize(
        _KERNELS,
        # Not beside the sources: whatever is in the package gets into the wheel.
        build_dir="build/cython",
        nthreads=_AT_ONCE,
        quiet=True,
    ),
    cmdclass={"build_ext": _BuildKernels},
)
