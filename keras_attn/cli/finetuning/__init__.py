"""Fine-tuning of any model on a user's own data: `keras-attn finetune`.

| file             | content                                                         |
|------------------|-----------------------------------------------------------------|
| `settings.py`    | the options                                                     |
| `kinds.py`       | which task it is, from the data's columns or folders            |
| `source.py`      | MODEL: loading it with the head that the task needs             |
| `job.py`         | what every task has: data, head, loss, figures                  |
| `labeled.py`     | the tasks of texts with a class or a score                      |
| `completions.py` | prompts and completions, preferences                            |
| `pictures.py`    | a folder of images per class                                    |
| `pixels.py`      | images and masks                                                |
| `objects.py`     | images and boxes                                                |
| `run.py`         | one run, in order, and what it costs                            |
| `folder.py`      | its folder: whether it is new, complete, or goes on             |
| `training.py`    | training, resuming, saving                                      |
| `adaptation.py`  | LoRA, quantization                                              |
| `result.py`      | `finetuned.json`: what `keras-attn predict` has to know         |
| `card.py`        | the model card                                                  |
"""
