"""Checkpoints in the Hugging Face layout: read into our models, and written from them.

| file          | content                                                        |
|---------------|----------------------------------------------------------------|
| `tensors.py`  | one safetensors file                                           |
| `config.py`   | the fields of `config.json`, bounded by the weight files       |
| `folder.py`   | the folder, and which file holds which key                     |
| `mapping.py`  | how a family maps keys to our weights: `Weight` and `Family`   |
| `tasks.py`    | from a task to a model, and from a model to its task           |
| `families/`   | the keys and fields of each model type, one format per file    |
| `loading.py`  | `load_checkpoint`, and the same model without its weights      |
| `saving.py`   | `save_checkpoint`                                              |
| `publishing.py` | `push_checkpoint`: the same folder to the hub, with a card |
| `modules.py`  | the parts of our kernels that are modules in transformers      |
| `adapters.py` | `load_lora`: adapters in PEFT's layout; `save_lora` and the |
|               | fields are in `adapter_saving.py` and `adapter_config.py`      |
"""

from keras_attn.models.checkpoints.adapter_saving import save_lora
from keras_attn.models.checkpoints.adapters import load_lora
from keras_attn.models.checkpoints.loading import load_checkpoint
from keras_attn.models.checkpoints.publishing import push_checkpoint
from keras_attn.models.checkpoints.saving import save_checkpoint

__all__ = [
    "load_checkpoint",
    "load_lora",
    "push_checkpoint",
    "save_checkpoint",
    "save_lora",
]
