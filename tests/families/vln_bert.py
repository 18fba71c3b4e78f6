"""VLN-BERT."""

import numpy as np
from families.vilbert import TINY, embedded_words, linear, streams, vilbert, with_areas
from model_family import C, Graph, M


def reference(model, inputs):
    """ViLBERT's streams, and the sum of terms of `models/vln_bert.py`."""
    layer = model.get_layer
    locations = with_areas(inputs["region_boxes"].astype("float64"))
    regions = linear(layer("region_embedding"), inputs["region_features"])
    regions = regions + linear(layer("location_embedding"), locations)
    heading, elevation, next_heading = np.moveaxis(inputs["region_angles"], -1, 0)
    for name, angles in (
        ("orientation", (heading, elevation)),
        ("next_heading", (next_heading,)),
    ):
        numbers = [turn(angle) for angle in angles for turn in (np.sin, np.cos)]
        kernel = np.asarray(layer(f"{name}_embedding").kernel, "float64")
        regions += np.stack(numbers, axis=-1) @ kernel
    table = np.asarray(layer("viewpoint_embedding").embeddings, "float64")
    regions += table[inputs["viewpoint_ids"]]
    words = embedded_words(model, inputs)
    masks = inputs["padding_mask"], inputs["region_padding_mask"]
    return streams(model, words, regions, *masks)


# The new terms: four and two numbers without a bias, and a path of 8 viewpoints.
_TERMS = (4 + 2 + 8) * 1024

GRAPHS = [
    Graph(
        "vln_bert_base",
        {**TINY, "max_path_length": M},
        {"vln_bert_base": vilbert() + _TERMS},
        heads={"vln_bert_pretrainer": {"num_region_classes": C}, "vln_bert_scorer": {}},
        exported=("vln_bert_scorer",),
        reference=reference,
    )
]
