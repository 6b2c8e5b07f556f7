"""Run ``python -m gfx950emu``."""

import sys

from gfx950emu.cli import main

sys.exit(main())
