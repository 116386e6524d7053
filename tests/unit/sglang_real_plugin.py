"""Runs the check of containers/dspine on an unpacked SGLang wheel; a script of its own process.

SGLANG_PLUGINS=ENTRY_POINT python sglang_real_plugin.py FOLDER ENTRY_POINT ALGORITHM
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sglang_real_parser import make_importable  # the folder of a script is on its path

if __name__ == "__main__":
    folder, *arguments = sys.argv[1:]
    make_importable(folder)
    script = Path(__file__).parents[2] / "containers/dspine/verify_plugin.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")
