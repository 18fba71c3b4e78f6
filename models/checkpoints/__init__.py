"""Checkpoints in the Hugging Face layout: read into our models, and written from them.

| file             | what it knows                                           |
|------------------|---------------------------------------------------------|
| `tensors.py`     | one safetensors file                                    |
| `config.py`      | `config.json`, its numbers bounded by the weight files  |
| `folder.py`      | the folder, and which file holds which key              |
| `mapping.py`     | how a family says what its weights are called           |
| `bert.py`, …     | the names and numbers of one family                     |
| `families.py`    | which families there are                                |
| `loading.py`     | `load_checkpoint`                                       |
| `saving.py`      | `save_checkpoint`                                       |
"""

from keras_attn.models.checkpoints.loading import load_checkpoint
from keras_attn.models.checkpoints.saving import save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
