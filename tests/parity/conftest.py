"""The scripts that write references import each other as top-level modules."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
