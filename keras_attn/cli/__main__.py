"""`python -m keras_attn.cli` is `keras-attn`."""

import sys

from keras_attn.console import main

sys.exit(main())
