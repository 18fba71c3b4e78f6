"""OpenAI GPT and GPT-2 checkpoints.

Both are read by `build_gpt`: GPT's blocks are post-norm, GPT-2's pre-norm. Their
kernels are kept as ours are, and their logits are those of the token embeddings: a
body without a head lacks nothing of a language model, and `task` makes it one.
"""

import keras

from keras_attn.layers import TransformerDecoderBlock
from keras_attn.models import gpt as builders
from keras_attn.models.checkpoints.mapping import (
    ACTIVATIONS,
    Family,
    Weight,
    activation_name,
    call_builders,
    conv1d,
    get_choice,
    get_epsilon,
    get_num_blocks,
    get_num_labels,
    get_probability,
    get_size,
    head_weights,
    label_fields,
    norm,
    require,
    same,
)
from keras_attn.ops import gelu_tanh

# Here "gelu" is what every other family calls "gelu_new".
_OPENAI_ACTIVATIONS = {
    "gelu": gelu_tanh,
    "relu": keras.activations.relu,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
}
_HEADS = {
    "encoder": builders.build_gpt_encoder,
    "classifier": builders.build_gpt_classifier,
    "token_classifier": builders.build_gpt_token_classifier,
}


def _shared_arguments(config, overrides):
    require(config, {"tie_word_embeddings": (True,), "add_cross_attention": (False,)})
    dropout = get_probability(config, "resid_pdrop", 0.1)
    of_embeddings = get_probability(config, "embd_pdrop", 0.1)
    if "dropout" not in overrides and of_embeddings != dropout:
        raise ValueError(
            "`embd_pdrop` and `resid_pdrop` in config.json must be equal, for ours is "
            "one number; say which by `dropout`. "
            f"Received: embd_pdrop={of_embeddings}, resid_pdrop={dropout}"
        )
    width = get_size(config, "n_embd", 768)
    return {
        "num_layers": get_num_blocks(config, "n_layer", 12),
        "hidden_dim": width,
        "num_heads": get_size(config, "n_head", 12),
        "mlp_dim": 4 * width,
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_epsilon", 1e-5),
        "dropout": dropout,
        "attention_dropout": get_probability(config, "attn_pdrop", 0.1),
    }


def _openai_arguments(config, overrides):
    return {
        **_shared_arguments(config, overrides),
        "variant": "gpt_117m",
        "vocabulary_size": get_size(config, "vocab_size", 40_478),
        "max_sequence_length": get_size(config, "n_positions", 512),
        "activation": get_choice(config, "afn", _OPENAI_ACTIVATIONS, "gelu"),
    }


def _gpt2_arguments(config, overrides):
    require(
        config,
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
    )
    arguments = {
        **_shared_arguments(config, overrides),
        "variant": "gpt2_small",
        "vocabulary_size": get_size(config, "vocab_size", 50_257),
        "max_sequence_length": get_size(config, "n_positions", 1024),
        "activation": get_choice(
            config, "activation_function", ACTIVATIONS, "gelu_new"
        ),
    }
    if config.get("n_inner") is not None:
        arguments["mlp_dim"] = get_size(config, "n_inner", 1)
    return arguments


def _head_arguments(config, task):
    if task == "token_classifier":
        rate = "classifier_dropout"
        if config.get(rate) is None:
            rate = "hidden_dropout"
        dropout = get_probability(config, rate, 0.1)
        return {"num_classes": get_num_labels(config), "dropout": dropout}
    if task == "classifier":
        # Theirs drops nothing in front of it.
        return {"num_classes": get_num_labels(config), "dropout": 0.0}
    return {}


def _builder(body_arguments):
    """The `build` of a family."""

    def build(config, task, overrides):
        chosen, arguments = [builders.build_gpt], [body_arguments(config, overrides)]
        if task in _HEADS:
            chosen.append(_HEADS[task])
            arguments.append(_head_arguments(config, task))
        return call_builders(chosen, arguments, overrides)

    return build


def _blocks(model):
    return [layer for layer in model.layers if layer.name.startswith("block_")]


def _task_of(model, norm_first) -> str | None:
    names = {layer.name for layer in getattr(model, "layers", ())}
    if not {"token_embedding", "position_embedding", "block_0"} <= names:
        return None
    block = model.get_layer("block_0")
    if not isinstance(block, TransformerDecoderBlock) or block.norm_first != norm_first:
        return None
    if not isinstance(model.input, dict) or set(model.input) != {
        "token_ids",
        "padding_mask",
    }:
        return None
    if isinstance(model.output, dict):
        return "encoder" if "sequence_output" in model.output else None
    if "classifier" in names:
        return "classifier" if len(model.output.shape) == 2 else "token_classifier"
    is_logits = model.output.shape[-1] == model.get_layer("token_embedding").input_dim
    return "causal_lm" if is_logits else None


def _config(model) -> dict:
    part = model.get_layer
    block, tokens = part("block_0"), part("token_embedding")
    key_dim = block.self_attention.key_dim
    if key_dim * block.num_heads != tokens.output_dim:
        raise ValueError(
            "`key_dim` must be the width over the heads for a checkpoint of GPT. "
            f"Received: key_dim={key_dim}, num_heads={block.num_heads}, "
            f"width={tokens.output_dim}"
        )
    positions = part("position_embedding").max_sequence_length
    for each in _blocks(model):
        if each.window is not None and each.window < positions:
            raise ValueError(
                "`window` must be None for a checkpoint of GPT: transformers has no "
                f"banded attention for it. Received: window={each.window}"
            )
    config = {
        "vocab_size": tokens.input_dim,
        "n_positions": positions,
        "n_embd": tokens.output_dim,
        "n_layer": len(_blocks(model)),
        "n_head": block.num_heads,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "resid_pdrop": block.dropout,
        "embd_pdrop": part("embeddings_dropout").rate,
        "attn_pdrop": block.attention_dropout,
    }
    if "classifier" in {layer.name for layer in model.layers}:
        config.update(label_fields(part("classifier").units))
    return config


def _openai_config(model) -> dict:
    block = model.get_layer("block_0")
    config = _config(model)
    if block.mlp_dim != 4 * config["n_embd"]:
        raise ValueError(
            "`mlp_dim` must be four times the width for a checkpoint of OpenAI GPT. "
            f"Received: mlp_dim={block.mlp_dim}, width={config['n_embd']}"
        )
    return {**config, "afn": activation_name(block.activation, _OPENAI_ACTIVATIONS)}


def _gpt2_config(model) -> dict:
    block = model.get_layer("block_0")
    config = {
        **_config(model),
        "n_inner": block.mlp_dim,
        "activation_function": activation_name(block.activation),
    }
    if _task_of(model, norm_first=True) == "token_classifier":
        config["classifier_dropout"] = model.get_layer("classifier_dropout").rate
    return config


def _weights(model, tokens, positions) -> list[Weight]:
    part, prefix = model.get_layer, "transformer."
    weights = [
        same(f"{prefix}{tokens}.weight", part("token_embedding").embeddings),
        same(f"{prefix}{positions}.weight", part("position_embedding").embeddings),
    ]
    for index in range(len(_blocks(model))):
        block, name = part(f"block_{index}"), f"{prefix}h.{index}"
        attention, feed_forward = block.self_attention, block.feed_forward
        expand, contract = feed_forward.expand, feed_forward.contract
        weights += [
            *norm(f"{name}.ln_1", block.self_attention_norm),
            *conv1d(
                f"{name}.attn.c_attn",
                attention.query_key_value_kernel,
                attention.query_key_value_bias,
            ),
            *conv1d(
                f"{name}.attn.c_proj", attention.output_kernel, attention.output_bias
            ),
            *norm(f"{name}.ln_2", block.feed_forward_norm),
            *conv1d(f"{name}.mlp.c_fc", expand.kernel, expand.bias),
            *conv1d(f"{name}.mlp.c_proj", contract.kernel, contract.bias),
        ]
    names = {layer.name for layer in model.layers}
    if "final_norm" in names:
        weights += norm(f"{prefix}ln_f", part("final_norm"))
    if "classifier" in names:
        # The head over a text has no bias, and that over tokens has.
        has_bias = part("classifier").bias is not None
        named = {"classifier": "classifier" if has_bias else "score"}
        weights += head_weights(model, named)
    return weights


_BUFFERS = (
    r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    "transformer.position_ids",
)
_TASKS = ("causal_lm", *_HEADS)
# Of transformers' heads that we don't build.
_OTHER_HEADS = ("lm_head.", "score.", "classifier.", "multiple_choice_head.")

OPENAI_GPT = Family(
    model_type="openai-gpt",
    architectures={
        "OpenAIGPTLMHeadModel": "causal_lm",
        "OpenAIGPTModel": "encoder",
        "OpenAIGPTForSequenceClassification": "classifier",
    },
    saved_as={
        "causal_lm": "OpenAIGPTLMHeadModel",
        "encoder": "OpenAIGPTModel",
        "classifier": "OpenAIGPTForSequenceClassification",
    },
    tasks=_TASKS,
    bare="OpenAIGPTModel",
    prefix="transformer.",
    heads=_OTHER_HEADS,
    build=_builder(_openai_arguments),
    task_of=lambda model: _task_of(model, norm_first=False),
    config=_openai_config,
    weights=lambda model: _weights(model, "tokens_embed", "positions_embed"),
    buffers=_BUFFERS,
    tied={"causal_lm": {"lm_head.weight": "transformer.tokens_embed.weight"}},
)
GPT2 = Family(
    model_type="gpt2",
    architectures={
        "GPT2LMHeadModel": "causal_lm",
        "GPT2Model": "encoder",
        "GPT2ForSequenceClassification": "classifier",
        "GPT2ForTokenClassification": "token_classifier",
    },
    saved_as={
        "causal_lm": "GPT2LMHeadModel",
        "encoder": "GPT2Model",
        "classifier": "GPT2ForSequenceClassification",
        "token_classifier": "GPT2ForTokenClassification",
    },
    tasks=_TASKS,
    bare="GPT2Model",
    prefix="transformer.",
    heads=_OTHER_HEADS,
    build=_builder(_gpt2_arguments),
    task_of=lambda model: _task_of(model, norm_first=True),
    config=_gpt2_config,
    weights=lambda model: _weights(model, "wte", "wpe"),
    buffers=_BUFFERS,
    tied={"causal_lm": {"lm_head.weight": "transformer.wte.weight"}},
)
