"""Predictions of a fine-tuned folder, or of a file that was exported from it.

| file              | content                                                        |
|-------------------|----------------------------------------------------------------|
| `network.py`      | MODEL, in Keras or in its runtime, and what it learned         |
| `inputs.py`       | texts and images in files, folders and standard input          |
| `texts.py`        | classes and scores of texts; continuations of prompts          |
| `pictures.py`     | classes, masks and objects of images                           |
| `drawn.py`        | images with what was found drawn over them                     |
| `output.py`       | CSV and JSON lines                                             |
| `evaluation.py`   | the scores of `keras-attn evaluate`: which ones                |
| `scores.py`       | scores of classes and numbers, and what is reported            |
| `text_scores.py`  | the scores of texts                                            |
| `image_scores.py` | the scores of images                                           |
"""
