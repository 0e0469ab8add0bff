"""A GPU that is asked for and not there ends a start at once, before a model is fetched or a process started."""

from __future__ import annotations

import pytest

from sapwood.managers.front import front
from sapwood.managers.front.front import Front
from sapwood.managers.wire.options import EngineConfig
from sapwood.runtime import devices
from sapwood.runtime.errors import UnsupportedModel


async def test_device_cuda_without_a_gpu_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVERS", ("no-such-driver.so",))
    monkeypatch.setattr(front, "Supervisor", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(UnsupportedModel, match=r"NVIDIA's driver is not installed on this machine\. Use device cpu"):
        await Front(EngineConfig(model="/no/model.gguf", device="cuda")).start()
