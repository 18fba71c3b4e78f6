"""Settings of TensorFlow that are read when it is imported: import this module first.

TensorFlow leaves oneDNN off on CPUs without AVX512-VNNI, where it is faster, too.
"""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
