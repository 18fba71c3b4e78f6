"""Checkpoints in the Hugging Face layout: read into our models, and written from them.

| file          | what it knows                                          |
|---------------|--------------------------------------------------------|
| `tensors.py`  | one safetensors file                                   |
| `config.py`   | the fields of `config.json`, bounded by the weight files |
| `folder.py`   | `config.json`, and which file holds which key          |
| `mapping.py`  | how a family says what its weights are called          |
| `bert.py`, …  | the names and numbers of one family                    |
| `keras_state.py` | building without allocating, and undoing it        |
| `families.py` | which families there are                               |
| `loading.py`  | `load_checkpoint`                                      |
| `saving.py`   | `save_checkpoint`                                      |
"""

from keras_attn.models.checkpoints.loading import load_checkpoint
from keras_attn.models.checkpoints.saving import save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
