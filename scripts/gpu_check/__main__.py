"""`python scripts/gpu_check`: finds the checkout's own code, whatever facepipe is installed."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent
for folder in (SCRIPTS / "bench", SCRIPTS, SCRIPTS.parent):
    sys.path.insert(0, str(folder))

if __name__ == "__main__":
    from gpu_check.check import main

    sys.exit(main())
