"""What is in an attention page."""

import base64
import json
import re

import numpy as np


def data_of(page: str) -> dict:
    """The data, with the weights of each layer as an array, (N, T, S)."""
    (data,) = re.findall(r'application/json" id="attention">(.*)</script>', page)
    data = json.loads(data)
    for layer in (layer for model in data["models"] for layer in model["layers"]):
        weights = np.frombuffer(base64.b64decode(layer["weights"]), "<u2")
        shape = [len(layer[name]) for name in ("heads", "target_tokens")]
        layer["weights"] = weights.reshape(*shape, -1) / 65_535
    return data
