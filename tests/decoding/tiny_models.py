"""Moved to `model_cases`."""

from model_cases import *  # noqa: F403
from model_cases import SEQ2SEQ

CASES = SEQ2SEQ
