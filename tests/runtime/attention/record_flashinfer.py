"""Writes down the signatures of the FlashInfer calls that the backend makes, read from its source; run it by hand.

    python tests/runtime/attention/record_flashinfer.py SITE_PACKAGES

SITE_PACKAGES: where `flashinfer` lies, as pip installed or unpacked it. It is read, not imported: importing it takes a
CUDA torch. The answer is `flashinfer_signatures.json` beside this file.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("flashinfer_signatures.json")
CALLS = {
    "BatchPrefillWithPagedKVCacheWrapper.__init__": "prefill.py",
    "BatchPrefillWithPagedKVCacheWrapper.plan": "prefill.py",
    "BatchPrefillWithPagedKVCacheWrapper.run": "prefill.py",
    "BatchDecodeWithPagedKVCacheWrapper.__init__": "decode.py",
    "BatchDecodeWithPagedKVCacheWrapper.plan": "decode.py",
    "BatchDecodeWithPagedKVCacheWrapper.run": "decode.py",
    "merge_state_in_place": "cascade.py",
    "rmsnorm": "norm/__init__.py",
    "fused_add_rmsnorm": "norm/__init__.py",
    "gemma_rmsnorm": "norm/__init__.py",
    "gemma_fused_add_rmsnorm": "norm/__init__.py",
    "silu_and_mul": "activation.py",
    "gelu_tanh_and_mul": "activation.py",
    "apply_rope_with_cos_sin_cache_inplace": "rope.py",
}


def read_signatures(site_packages: Path) -> dict[str, Any]:
    """{"version": …, "calls": {name: its parameters}}."""
    folder = site_packages / "flashinfer"
    trees = {name: ast.parse((folder / name).read_text(encoding="utf-8")) for name in set(CALLS.values())}
    calls = {name: _parameters(_function(trees[file], name)) for name, file in CALLS.items()}
    metadata = next(site_packages.glob("flashinfer_python-*.dist-info"))
    return {"version": metadata.name.split("-")[1].removesuffix(".dist"), "calls": calls}


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The last definition of that name (the ones before it are overloads). Where a method hands its keywords to
    NAME_impl, that is the one which says what they may be."""
    scope: list[ast.stmt] = tree.body
    owner, _, own = name.rpartition(".")
    if owner:
        scope = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    found = {node.name: node for node in scope if isinstance(node, ast.FunctionDef)}
    function = found[own]
    return found[f"_{own}_impl"] if function.args.kwarg and f"_{own}_impl" in found else function


def _parameters(function: ast.FunctionDef) -> str:
    """As Python writes them, with `...` for every default and no annotations."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    listed = [each.arg + ("=..." if i >= required else "") for i, each in enumerate(positional)]
    if arguments.vararg or arguments.kwonlyargs:
        listed.append("*" + (arguments.vararg.arg if arguments.vararg else ""))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        listed.append(each.arg + ("=..." if default is not None else ""))
    return ", ".join(listed)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(read_signatures(Path(sys.argv[1])), indent=2) + "\n", encoding="utf-8")
