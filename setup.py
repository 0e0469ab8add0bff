"""Compiles the kernel library into the package. Everything else about the project is in pyproject.toml.

Where there is no compiler the package is installed without it, with a note; `torch` computes then.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

FOLDER = Path("runtime", "kernels")


class BuildWithKernels(build_py):
    """The package's files, and the library beside its sources' modules (in place where the install is editable)."""

    def run(self) -> None:
        super().run()
        spec = importlib.util.spec_from_file_location("kernels_build", FOLDER / "build.py")
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        target = (FOLDER if self.editable_mode else Path(self.build_lib, "sapwood", FOLDER)) / build.LIBRARY
        if build.is_current(target):
            return
        try:
            build.build(target)
        except build.BuildError as error:
            self.warn(f"the CPU kernels were not built, torch will compute instead: {error}")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform, but any Python: the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
