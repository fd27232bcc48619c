"""Makes the goldens in this directory anew from the fixtures: `python golden/remake.py [DIR]`.

They are truths: look at the difference before you commit one that changed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from specwire.goldens.build import build_golden

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fixtures"))
from make import make  # noqa: E402

FAMILIES = ("llama", "deepseek")
DTYPES = ("float32", "bfloat16")


def remake(folder: Path, family: str, dtype: str) -> Path:
    """Write FOLDER/FAMILY/DTYPE.safetensors and return its path."""
    out = folder / family / f"{dtype}.safetensors"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as models:
        fixture = make(family, Path(models))
        build_golden(fixture.target, out, dtype=dtype, trained=fixture.boundaries, name=f"fixture {family}, seed 0")
    return out


if __name__ == "__main__":
    for family in FAMILIES:
        for dtype in DTYPES:
            print(remake(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE, family, dtype))
