"""`python -m keras_attn` is `keras-attn`."""

import sys

from keras_attn.console import main

if __name__ == "__main__":
    sys.exit(main())
