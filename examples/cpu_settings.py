"""Settings of TensorFlow that are read when it is imported: import this module first.

By default, TensorFlow uses oneDNN only on CPUs with AVX512-VNNI, but it is faster on
CPUs without it, too.
"""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
