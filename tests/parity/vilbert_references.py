"""ViLBERT in PyTorch, from the keys of the authors' files alone.

`python tests/parity/vilbert_references.py` writes one folder per case to
`checkpoints/`, with random weights, and inputs and outputs in `expected.npz`. The
authors' package needs an old PyTorch and no index has it; so this is written from its
equations: the order of its layers, the queries, keys and values of its co-attention,
and its names. The test that runs live writes the cases again.
"""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch.nn.functional import (  # pyright: ignore[reportMissingImports]
    gelu,
    layer_norm,
    linear,
)
from write_folders import saving, write

B, T, R = 3, 7, 5
CONFIG: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 18,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 11,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "v_feature_size": 13,
    "v_target_size": 17,
    "v_hidden_size": 20,
    "v_num_hidden_layers": 2,
    "v_num_attention_heads": 2,
    "v_intermediate_size": 29,
    "v_hidden_act": "gelu",
    "v_hidden_dropout_prob": 0.1,
    "v_attention_probs_dropout_prob": 0.1,
    "v_initializer_range": 0.02,
    "bi_hidden_size": 12,
    "bi_num_attention_heads": 4,
    "bi_intermediate_size": 12,
    "bi_attention_type": 1,
    "t_biattention_id": [1, 2],
    "v_biattention_id": [0, 1],
    "pooling_method": "mul",
    "fusion_method": "mul",
}
ANSWERS = 9
# Co-attention that follows co-attention, sums, and blocks before and after both.
_OTHER = {
    **CONFIG,
    "num_hidden_layers": 2,
    "v_num_hidden_layers": 3,
    "t_biattention_id": [0, 0, 2],
    "v_biattention_id": [1, 3, 3],
    "fusion_method": "sum",
}
TASKS = "VILBertForVLTasks"
CASES: dict[str, dict[str, Any]] = {
    # As the authors' configurations are, without a class.
    "vilbert_pretrainer": CONFIG,
    "vilbert_tasks": {**_OTHER, "architectures": [TASKS], "num_labels": ANSWERS},
}


class Net:
    """The model of a configuration and of tensors by the authors' keys."""

    def __init__(self, config, tensors):
        self.config = config
        self.tensors = {key: torch.tensor(value) for key, value in tensors.items()}

    def dense(self, key, x):
        """`torch.nn.Linear`."""
        return linear(x, self.tensors[f"{key}.weight"], self.tensors[f"{key}.bias"])

    def norm(self, key, x):
        """The authors' `BertLayerNorm`."""
        weight, bias = (self.tensors[f"{key}.{part}"] for part in ("weight", "bias"))
        return layer_norm(x, x.shape[-1:], weight, bias, 1e-12)

    def attend(self, queries, keys, values, mask, heads):
        """Attention with an additive mask of -10000, (B, S)."""

        def split(x):
            return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

        queries, keys, values = map(split, (queries, keys, values))
        scores = queries @ keys.transpose(2, 3) / queries.shape[-1] ** 0.5
        scores = scores - 10_000 * (1 - mask[:, None, None].float())
        context = scores.softmax(-1) @ values
        return context.transpose(1, 2).flatten(2)

    def block(self, key, x, mask, heads):
        """A block of one stream."""
        name = f"{key}.attention.self"
        queries, keys, values = self.parts(name, x)
        context = self.attend(queries, keys, values, mask, heads)
        context = self.dense(f"{key}.attention.output.dense", context)
        x = self.norm(f"{key}.attention.output.LayerNorm", context + x)
        return self.feed(f"{key}.intermediate", f"{key}.output", x)

    def parts(self, name, x, stream=""):
        """Queries, keys and values."""
        parts = ("query", "key", "value")
        return [self.dense(f"{name}.{part}{stream}", x) for part in parts]

    def feed(self, inner, outer, x):
        """A feed-forward network with its norm."""
        hidden = gelu(self.dense(f"{inner}.dense", x))
        return self.norm(f"{outer}.LayerNorm", self.dense(f"{outer}.dense", hidden) + x)

    def co_attention(self, key, regions, words, region_mask, mask):
        """Both streams after a co-attention; 1 is the regions, 2 the words."""
        name, heads = f"{key}.biattention", self.config["bi_num_attention_heads"]
        q1, k1, v1 = self.parts(name, regions, "1")
        q2, k2, v2 = self.parts(name, words, "2")
        of_words = self.attend(q2, k1, v1, region_mask, heads)
        of_regions = self.attend(q1, k2, v2, mask, heads)
        out = f"{key}.biOutput"
        x = self.dense(f"{out}.dense1", of_regions) + regions
        y = self.dense(f"{out}.dense2", of_words) + words
        x, y = self.norm(f"{out}.LayerNorm1", x), self.norm(f"{out}.LayerNorm2", y)
        x = self.feed(f"{key}.v_intermediate", f"{key}.v_output", x)
        return x, self.feed(f"{key}.t_intermediate", f"{key}.t_output", y)

    def embed(self, inputs):
        """Words, regions with the whole image before them, and the regions' mask."""
        tables, ids = "bert.embeddings", inputs["token_ids"].long()
        word, position, segment = (
            self.tensors[f"{tables}.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        words = word[ids] + position[: ids.shape[1]]
        words = words + segment[inputs["segment_ids"].long()]
        features, boxes = inputs["region_features"], inputs["region_boxes"]
        mask = inputs["region_padding_mask"].float()
        # As the authors' readers do: features of padding are zeros.
        mean = (features * mask[..., None]).sum(1, keepdim=True)
        mean = mean / mask.sum(1)[:, None, None]
        areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
        places = torch.cat([boxes, areas[..., None]], -1)
        whole = torch.tensor([0.0, 0, 1, 1, 1]).expand(len(boxes), 1, 5)
        key = "bert.v_embeddings"
        regions = self.dense(f"{key}.image_embeddings", torch.cat([mean, features], 1))
        regions = regions + self.dense(
            f"{key}.image_location_embeddings", torch.cat([whole, places], 1)
        )
        mask = torch.cat([torch.ones(len(mask), 1), mask], 1)
        words = self.norm(f"{tables}.LayerNorm", words)
        return words, self.norm(f"{key}.LayerNorm", regions), mask

    def run(self, inputs):
        """The outputs of all heads, by names of ours."""
        inputs = {name: torch.tensor(array) for name, array in inputs.items()}
        words, regions, region_mask = self.embed(inputs)
        mask, config = inputs["padding_mask"], self.config
        at = {"layer": 0, "v_layer": 0}

        def through(kind, end, x, x_mask, heads):
            for index in range(at[kind], end):
                x = self.block(f"bert.encoder.{kind}.{index}", x, x_mask, heads)
            at[kind] = end
            return x

        heads, v_heads = config["num_attention_heads"], config["v_num_attention_heads"]
        pairs = zip(config["v_biattention_id"], config["t_biattention_id"], strict=True)
        for count, (v_end, t_end) in enumerate(pairs):
            regions = through("v_layer", v_end, regions, region_mask, v_heads)
            words = through("layer", t_end, words, mask, heads)
            regions, words = self.co_attention(
                f"bert.encoder.c_layer.{count}", regions, words, region_mask, mask
            )
        v_end, t_end = config["v_num_hidden_layers"], config["num_hidden_layers"]
        regions = through("v_layer", v_end, regions, region_mask, v_heads)
        words = through("layer", t_end, words, mask, heads)
        pooled = self.dense("bert.t_pooler.dense", words[:, 0]).relu()
        pooled_regions = self.dense("bert.v_pooler.dense", regions[:, 0]).relu()
        outputs = {
            "sequence_output": words,
            "region_output": regions,
            "pooled_output": pooled,
            "pooled_region_output": pooled_regions,
        }
        is_product = config["fusion_method"] == "mul"
        pair = pooled * pooled_regions if is_product else pooled + pooled_regions
        outputs |= self.heads(words, regions[:, 1:], region_mask[:, 1:], pair)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def heads(self, words, regions, region_mask, pair):
        """The logits of the heads that the tensors have."""
        outputs, key = {}, "cls.predictions"
        hidden = gelu(self.dense(f"{key}.transform.dense", words))
        hidden = self.norm(f"{key}.transform.LayerNorm", hidden)
        table = self.tensors["bert.embeddings.word_embeddings.weight"]
        outputs["masked_lm"] = hidden @ table.T + self.tensors[f"{key}.bias"]
        key = "cls.imagePredictions"
        hidden = gelu(self.dense(f"{key}.transform.dense", regions))
        hidden = self.norm(f"{key}.transform.LayerNorm", hidden)
        outputs["masked_regions"] = self.dense(f"{key}.decoder", hidden)
        outputs["alignment"] = self.dense("cls.bi_seq_relationship", pair)
        if "vil_logit.weight" in self.tensors:
            key = "vil_prediction.logit_fc"
            hidden = self.norm(f"{key}.2", gelu(self.dense(f"{key}.0", pair)))
            outputs["classifier"] = self.dense(f"{key}.3", hidden)
            outputs["scorer"] = self.dense("vil_logit", pair)
            outside = 10_000 * (1 - region_mask)
            outputs["referring"] = self.dense("vision_logit", regions)[..., 0] - outside
        return outputs


def shapes_of(config) -> dict[str, tuple[int, ...]]:
    """Every key of the authors' file, and the shape of its tensor."""
    text, region, co = (
        config[x] for x in ("hidden_size", "v_hidden_size", "bi_hidden_size")
    )
    inner, v_inner = config["intermediate_size"], config["v_intermediate_size"]
    dense: dict[str, tuple[int, int]] = {}
    norms: dict[str, int] = {"bert.embeddings.LayerNorm": text}
    for kind, width, hidden, count in (
        ("layer", text, inner, config["num_hidden_layers"]),
        ("v_layer", region, v_inner, config["v_num_hidden_layers"]),
    ):
        for index in range(count):
            key = f"bert.encoder.{kind}.{index}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                dense[f"{key}.attention.{part}"] = (width, width)
            dense[f"{key}.intermediate.dense"] = (hidden, width)
            dense[f"{key}.output.dense"] = (width, hidden)
            norms[f"{key}.attention.output.LayerNorm"] = width
            norms[f"{key}.output.LayerNorm"] = width
    for index in range(len(config["v_biattention_id"])):
        key = f"bert.encoder.c_layer.{index}"
        for number, width in ((1, region), (2, text)):
            for part in ("query", "key", "value"):
                dense[f"{key}.biattention.{part}{number}"] = (co, width)
            dense[f"{key}.biOutput.dense{number}"] = (width, co)
            # In the file, and called by nothing.
            dense[f"{key}.biOutput.q_dense{number}"] = (width, co)
            norms[f"{key}.biOutput.LayerNorm{number}"] = width
        for stream, width, hidden in (("v", region, v_inner), ("t", text, inner)):
            dense[f"{key}.{stream}_intermediate.dense"] = (hidden, width)
            dense[f"{key}.{stream}_output.dense"] = (width, hidden)
            norms[f"{key}.{stream}_output.LayerNorm"] = width
    dense |= {
        "bert.v_embeddings.image_embeddings": (region, config["v_feature_size"]),
        "bert.v_embeddings.image_location_embeddings": (region, 5),
        "bert.t_pooler.dense": (co, text),
        "bert.v_pooler.dense": (co, region),
        "cls.predictions.transform.dense": (text, text),
        "cls.imagePredictions.transform.dense": (region, region),
        "cls.imagePredictions.decoder": (config["v_target_size"], region),
        "cls.bi_seq_relationship": (2, co),
    }
    norms |= {
        "bert.v_embeddings.LayerNorm": region,
        "cls.predictions.transform.LayerNorm": text,
        "cls.imagePredictions.transform.LayerNorm": region,
    }
    if "architectures" in config:
        dense |= {
            "vil_prediction.logit_fc.0": (2 * co, co),
            "vil_prediction.logit_fc.3": (ANSWERS, 2 * co),
            "vil_prediction_gqa.logit_fc.0": (2 * co, co),
            "vil_binary_prediction.logit_fc.0": (2 * co, 2 * co),
            "vil_logit": (1, co),
            "vil_tri_prediction": (3, co),
            "vision_logit": (1, region),
            "linguisic_prediction": (2, text),
            "linguisic_logit": (1, text),
        }
        norms["vil_prediction.logit_fc.2"] = 2 * co
    table = (config["vocab_size"], text)
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": table,
        "bert.embeddings.position_embeddings.weight": (
            config["max_position_embeddings"],
            text,
        ),
        "bert.embeddings.token_type_embeddings.weight": (
            config["type_vocab_size"],
            text,
        ),
        "cls.predictions.bias": table[:1],
        "cls.predictions.decoder.weight": table,
    }
    for key, shape in dense.items():
        shapes |= {f"{key}.weight": shape, f"{key}.bias": shape[:1]}
    for key, width in norms.items():
        shapes |= {f"{key}.weight": (width,), f"{key}.bias": (width,)}
    return shapes


def tensors_for(config):
    """Random tensors of every key; the decoder of words is their table."""
    rng = np.random.default_rng(11)
    tensors = {}
    for key, shape in shapes_of(config).items():
        is_scale = len(shape) == 1 and key.endswith(".weight")
        values = rng.normal(0, 0.3, shape) + is_scale
        tensors[key] = values.astype("float32")
    tied = "bert.embeddings.word_embeddings.weight"
    tensors["cls.predictions.decoder.weight"] = tensors[tied]
    return tensors


def inputs_for(config):
    """Inputs with padding in both streams."""
    rng = np.random.default_rng(19)
    corners = np.sort(rng.uniform(size=(2, B, R, 2)), axis=0)
    lengths, counts = np.array([[T], [4], [6]]), np.array([[2], [R], [3]])
    return {
        "token_ids": rng.integers(1, config["vocab_size"], (B, T)).astype("int32"),
        "padding_mask": np.arange(T) < lengths,
        "segment_ids": (np.arange(T) >= lengths // 2).astype("int32"),
        "region_features": rng.normal(size=(B, R, config["v_feature_size"])).astype(
            "float32"
        ),
        "region_boxes": np.concatenate([*corners], -1).astype("float32"),
        "region_padding_mask": np.arange(R) < counts,
    }


def make_cases():
    """The cases of `write`."""
    cases = {}
    for name, config in CASES.items():
        tensors, inputs = tensors_for(config), inputs_for(config)
        outputs = Net(config, tensors).run(inputs)
        arrays = {f"input_{key}": array for key, array in inputs.items()}
        arrays |= {f"output_{key}": array for key, array in outputs.items()}
        cases[name] = saving(tensors, config), arrays
    return cases


if __name__ == "__main__":
    write(make_cases())
