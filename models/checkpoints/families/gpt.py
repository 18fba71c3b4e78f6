"""OpenAI GPT and GPT-2 checkpoints.

`build_gpt` builds both: GPT's blocks are post-norm, GPT-2's pre-norm. The kernels in
their files are laid out like ours. Their logits come from the token embeddings, so a
file of a body without a head has all the weights of a language model, and
`task="causal_lm"` reads it as one.
"""

import keras

from keras_attn.layers import TransformerDecoderBlock
from keras_attn.models import gpt_tasks as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, activation_name
from keras_attn.models.checkpoints.mapping import Family, Joined, Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.ops import gelu_tanh

# Here "gelu" is the function that all other families call "gelu_new".
_OPENAI_ACTIVATIONS = {
    "gelu": gelu_tanh,
    "relu": keras.activations.relu,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
}
# Causal masks, which old files have.
BUFFERS = (r"(.+\.)?transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",)
_HEADS = tasks.heads_of(builders, "gpt")


def _shared_arguments(config, overrides, cross_attention=False):
    if config.get_bool("add_cross_attention", False) != cross_attention:
        name, found = "add_cross_attention", not cross_attention
        raise config.error(name, str(cross_attention), found)
    dropout = config.get_probability("resid_pdrop", 0.1)
    embeddings_dropout = config.get_probability("embd_pdrop", 0.1)
    if "dropout" not in overrides and embeddings_dropout != dropout:
        raise ValueError(
            "`embd_pdrop` and `resid_pdrop` in config.json must be equal, because our "
            "model has one rate for both; pass the one to use as `dropout`. "
            f"Received: embd_pdrop={embeddings_dropout}, resid_pdrop={dropout}"
        )
    width = config.get_size("n_embd", 768)
    return {
        "num_layers": config.get_num_blocks("n_layer", 12),
        "hidden_dim": width,
        "num_heads": config.get_size("n_head", 12),
        "mlp_dim": 4 * width,
        "layer_norm_epsilon": config.get_epsilon("layer_norm_epsilon", 1e-5),
        "dropout": dropout,
        "attention_dropout": config.get_probability("attn_pdrop", 0.1),
    }


def _openai_arguments(config, overrides):
    return {
        **_shared_arguments(config, overrides),
        "variant": "gpt_117m",
        "vocabulary_size": config.get_size("vocab_size", 40_478),
        "max_sequence_length": config.get_size("n_positions", 512),
        "activation": config.get_choice("afn", _OPENAI_ACTIVATIONS, "gelu"),
    }


def gpt2_arguments(config, overrides, cross_attention=False):
    """The arguments of `build_gpt`, or of a decoder with cross-attention."""
    config.require(
        {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)}
    )
    arguments = {
        **_shared_arguments(config, overrides, cross_attention),
        "variant": "gpt2_small",
        "vocabulary_size": config.get_size("vocab_size", 50_257),
        "max_sequence_length": config.get_size("n_positions", 1024),
        "activation": config.get_choice("activation_function", ACTIVATIONS, "gelu_new"),
    }
    if config.get("n_inner") is not None:
        arguments["mlp_dim"] = config.get_size("n_inner", 1)
    return arguments


def _head_arguments(config, task):
    if task == "token_classifier":
        return tasks.label_arguments(config, "classifier_dropout", "hidden_dropout")
    if task == "classifier":
        # transformers has no dropout before this head.
        return {"num_classes": config.get_num_labels(), "dropout": 0.0}
    return {}


def _make_build(body_arguments):
    """The `build` of a family."""

    def build(config, task, overrides):
        calls = [(builders.build_gpt, body_arguments(config, overrides))]
        if task in _HEADS:
            calls.append((_HEADS[task], _head_arguments(config, task)))
        return tasks.call_builders(calls, overrides)

    return build


def _find_task(model, norm_first) -> str | None:
    layers = layers_by_name(model)
    if not {"token_embedding", "position_embedding", "block_0"} <= set(layers):
        return None
    block = layers["block_0"]
    if not isinstance(block, TransformerDecoderBlock) or block.norm_first != norm_first:
        return None
    if not isinstance(model.input, dict) or set(model.input) != {
        "token_ids",
        "padding_mask",
    }:
        return None
    if isinstance(model.output, dict):
        return "encoder" if "sequence_output" in model.output else None
    if "classifier" in layers:
        return "classifier" if len(model.output.shape) == 2 else "token_classifier"
    is_logits = model.output.shape[-1] == layers["token_embedding"].input_dim
    return "causal_lm" if is_logits else None


def _config(layers) -> dict:
    blocks = [layers[name] for name in numbered_names(layers, "block_")]
    block, tokens = blocks[0], layers["token_embedding"]
    key_dim = block.self_attention.key_dim
    if key_dim * block.num_heads != tokens.output_dim:
        raise ValueError(
            "`key_dim` must be the width divided by `num_heads` for a GPT checkpoint. "
            f"Received: key_dim={key_dim}, num_heads={block.num_heads}, "
            f"width={tokens.output_dim}"
        )
    positions = layers["position_embedding"].max_sequence_length
    for each in blocks:
        if each.window is not None and each.window < positions:
            raise ValueError(
                "`window` must be None for a GPT checkpoint: the GPT models of "
                f"transformers have no banded attention. Received: window={each.window}"
            )
    return {
        **tasks.classifier_fields(layers),
        "vocab_size": tokens.input_dim,
        "n_positions": positions,
        "n_embd": tokens.output_dim,
        "n_layer": len(blocks),
        "n_head": block.num_heads,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "resid_pdrop": block.dropout,
        "embd_pdrop": layers["embeddings_dropout"].rate,
        "attn_pdrop": block.attention_dropout,
    }


def _openai_config(model) -> dict:
    block = model.get_layer("block_0")
    config = _config(layers_by_name(model))
    if block.mlp_dim != 4 * config["n_embd"]:
        raise ValueError(
            "`mlp_dim` must be four times the width for an OpenAI GPT checkpoint. "
            f"Received: mlp_dim={block.mlp_dim}, width={config['n_embd']}"
        )
    return {**config, "afn": activation_name(block.activation, _OPENAI_ACTIVATIONS)}


def gpt2_config(layers) -> dict:
    """The fields of `config.json` of a GPT-2, from its layers by name."""
    block = layers["block_0"]
    return {
        **_config(layers),
        "n_inner": block.mlp_dim,
        "activation_function": activation_name(block.activation),
    }


def _gpt2_config(model) -> dict:
    config = gpt2_config(layers_by_name(model))
    if _find_task(model, norm_first=True) == "token_classifier":
        config["classifier_dropout"] = model.get_layer("classifier_dropout").rate
    return config


def body_weights(layers, prefix, tokens="wte", positions="wpe") -> list[Weight]:
    """The weights of the body.

    Args:
        layers: Layers by name.
        prefix: What the keys begin with.
        tokens: Name of the table of token embeddings.
        positions: Name of the table of position embeddings.
    """
    named = {
        "token_embedding": f"{prefix}{tokens}.weight",
        "position_embedding": f"{prefix}{positions}.weight",
    }
    weights = mapping.tables(layers, named)
    for index, name in enumerate(numbered_names(layers, "block_")):
        block, key = layers[name], f"{prefix}h.{index}"
        attention, feed_forward = block.self_attention, block.feed_forward
        expand, contract = feed_forward.expand, feed_forward.contract
        weights += [
            *mapping.norm(f"{key}.ln_1", block.self_attention_norm),
            *mapping.conv1d(f"{key}.attn.c_attn", attention.query_key_value),
            *mapping.conv1d(f"{key}.attn.c_proj", attention.output_projection),
            *mapping.norm(f"{key}.ln_2", block.feed_forward_norm),
            *mapping.conv1d(f"{key}.mlp.c_fc", expand),
            *mapping.conv1d(f"{key}.mlp.c_proj", contract),
        ]
        if block.cross_attention is not None:
            weights += _cross_attention(key, block)
    if "final_norm" in layers:
        weights += mapping.norm(f"{prefix}ln_f", layers["final_norm"])
    return weights


def _cross_attention(key, block):
    attention, name = block.cross_attention, f"{key}.crossattention"
    pair = attention.key, attention.value
    return [
        *mapping.norm(f"{key}.ln_cross_attn", block.cross_attention_norm),
        *mapping.conv1d(f"{name}.q_attn", attention.query),
        mapping.same(f"{name}.c_attn.weight", Joined([x.kernel for x in pair])),
        mapping.same(f"{name}.c_attn.bias", Joined([x.bias for x in pair])),
        *mapping.conv1d(f"{name}.c_proj", attention.output_projection),
    ]


def _weights(model, tokens, positions) -> list[Weight]:
    layers = layers_by_name(model)
    weights = body_weights(layers, "transformer.", tokens, positions)
    if "classifier" in layers:
        # The text classifier has no bias, the token classifier has one.
        has_bias = layers["classifier"].bias is not None
        named = {"classifier": "classifier" if has_bias else "score"}
        weights += mapping.head_weights(model, named)
    return weights


def _make_family(model_type, classes, *, tokens, positions, norm_first, **fields):
    """The family of either type.

    Args:
        model_type: As in `config.json`.
        classes: Class of transformers to task.
        tokens: Name of the table of token embeddings.
        positions: Name of the table of position embeddings.
        norm_first: Whether blocks are pre-norm.
        **fields: Further fields of `Family`.
    """
    return Family(
        model_type=model_type,
        architectures=classes,
        tasks=("causal_lm", *_HEADS),
        prefix="transformer.",
        # Including heads of transformers that we don't build.
        heads=(
            *("lm_head.", "score.", "classifier."),
            *("multiple_choice_head.", "qa_outputs."),
        ),
        find_task=lambda model: _find_task(model, norm_first),
        weights=lambda model: _weights(model, tokens, positions),
        buffers=(*BUFFERS, r"transformer\.position_ids"),
        tied={"causal_lm": {"lm_head.weight": f"transformer.{tokens}.weight"}},
        **fields,
    )


OPENAI_GPT = _make_family(
    "openai-gpt",
    {
        "OpenAIGPTLMHeadModel": "causal_lm",
        "OpenAIGPTModel": "encoder",
        "OpenAIGPTForSequenceClassification": "classifier",
    },
    tokens="tokens_embed",
    positions="positions_embed",
    norm_first=False,
    build=_make_build(_openai_arguments),
    config=_openai_config,
)
GPT2 = _make_family(
    "gpt2",
    {
        "GPT2LMHeadModel": "causal_lm",
        "GPT2Model": "encoder",
        "GPT2ForSequenceClassification": "classifier",
        "GPT2ForTokenClassification": "token_classifier",
    },
    tokens="wte",
    positions="wpe",
    norm_first=True,
    build=_make_build(gpt2_arguments),
    config=_gpt2_config,
)
