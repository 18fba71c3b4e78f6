"""GPT, GPT-2, GPT-3 and Megatron: decoders that learn by guessing the next token.

    build_gpt         token ids -> logits of the token that follows each
    build_gpt_<head>  such a model -> the logits of a task

Legend: B batch, T length, P prompt length, L length of a cache, N heads, H head size,
D width, V vocabulary, C classes.
Layers: `token_embedding`, `position_embedding`, `embeddings_dropout`, `block_0`, …,
and `final_norm` where the blocks are pre-norm. `incremental()` finds them by these
names.
"""

import math

import keras

from keras_attn.checks import check_positive
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import LearnedPositionEmbedding, TransformerDecoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.token_embedding import TokenEmbedding
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.models.parts import heads, incremental
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve
from keras_attn.ops import gelu_tanh, token_positions


def _sizes(num_layers, hidden_dim, num_heads, key_dim=None):
    return {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "key_dim": key_dim or hidden_dim // num_heads,
        "mlp_dim": 4 * hidden_dim,
    }


_GPT = {
    "vocabulary_size": 40_478,
    "max_sequence_length": 512,
    "norm_first": False,
    "window": None,
}
_GPT2 = {
    "vocabulary_size": 50_257,
    "max_sequence_length": 1024,
    "norm_first": True,
    "window": None,
}
# The paper names the pattern, not the width of the band: 256 is ours.
_GPT3 = {**_GPT2, "max_sequence_length": 2048, "window": 256}
# 50,257 tokens, padded until eight devices share them evenly.
_MEGATRON = {**_GPT2, "vocabulary_size": 51_200}

VARIANTS = {
    # Radford et al. 2018, section 4.1.
    "gpt_117m": {**_GPT, **_sizes(12, 768, 12)},
    # Radford et al. 2019, table 2; heads of 64 units throughout.
    "gpt2_small": {**_GPT2, **_sizes(12, 768, 12)},
    "gpt2_medium": {**_GPT2, **_sizes(24, 1024, 16)},
    "gpt2_large": {**_GPT2, **_sizes(36, 1280, 20)},
    "gpt2_xl": {**_GPT2, **_sizes(48, 1600, 25)},
    # Brown et al. 2020, table 2.1. It gives "XL" 24 heads of 128 units for a width of
    # 2048, which would be 1.5 billion parameters; with 16 they are its 1.3 billion.
    "gpt3_small": {**_GPT3, **_sizes(12, 768, 12)},
    "gpt3_medium": {**_GPT3, **_sizes(24, 1024, 16)},
    "gpt3_large": {**_GPT3, **_sizes(24, 1536, 16)},
    "gpt3_xl": {**_GPT3, **_sizes(24, 2048, 16)},
    "gpt3_2p7b": {**_GPT3, **_sizes(32, 2560, 32)},
    "gpt3_6p7b": {**_GPT3, **_sizes(32, 4096, 32)},
    "gpt3_13b": {**_GPT3, **_sizes(40, 5140, 40, key_dim=128)},
    "gpt3_175b": {**_GPT3, **_sizes(96, 12_288, 96)},
    # Shoeybi et al. 2019, table 1.
    "megatron_1p2b": {**_MEGATRON, **_sizes(40, 1536, 16)},
    "megatron_2p5b": {**_MEGATRON, **_sizes(54, 1920, 20)},
    "megatron_4p2b": {**_MEGATRON, **_sizes(64, 2304, 24)},
    "megatron_8p3b": {**_MEGATRON, **_sizes(72, 3072, 32)},
}


def build_gpt(
    variant="gpt2_small",
    *,
    vocabulary_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    key_dim=None,
    mlp_dim=None,
    max_sequence_length=None,
    norm_first=None,
    window=None,
    activation=gelu_tanh,
    layer_norm_epsilon=1e-5,
    dropout=0.1,
    attention_dropout=0.1,
    name="gpt",
):
    """Token and position embeddings, then N causal blocks; the embeddings are tied.

    GPT's blocks are post-norm. From GPT-2 on they are pre-norm, a norm follows the
    last one, and the kernels in front of the residuals start smaller by √(2N). In
    GPT-3 every second block looks back over a band alone.

    Positions count the real tokens, so a prompt may be padded on either side.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        vocabulary_size: V.
        num_layers: Blocks.
        hidden_dim: D.
        num_heads: Attention heads a block.
        key_dim: H. Default: as the variant says; D / N if `hidden_dim` or `num_heads`
            are given.
        mlp_dim: Width of the feed-forward networks.
        max_sequence_length: Positions there are.
        norm_first: Pre-norm (True) or post-norm.
        window: Tokens that a query of blocks 1, 3, 5, … looks back on, itself
            included. A window of `max_sequence_length` is as none.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        name: Of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to logits (B, T, V).

    Reference:
        Radford et al. 2018, "Improving Language Understanding by Generative
        Pre-Training"; Radford et al. 2019, "Language Models are Unsupervised
        Multitask Learners"; Shoeybi et al. 2019 (arXiv:1909.08053); Brown et al. 2020
        (arXiv:2005.14165), the band: Child et al. 2019 (arXiv:1904.10509).
    """
    if key_dim is None and (hidden_dim is not None or num_heads is not None):
        row = resolve(VARIANTS, variant, hidden_dim=hidden_dim, num_heads=num_heads)
        key_dim = row["hidden_dim"] // row["num_heads"]
    numbers = resolve(
        VARIANTS,
        variant,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        key_dim=key_dim,
        mlp_dim=mlp_dim,
        max_sequence_length=max_sequence_length,
        norm_first=norm_first,
        window=window,
    )
    if numbers["window"] is not None:
        check_positive("window", numbers["window"])
    initializer = normal(0.02)
    residual = normal(0.02 / math.sqrt(2 * numbers["num_layers"]))
    parts = [
        TokenEmbedding(
            numbers["vocabulary_size"],
            numbers["hidden_dim"],
            embeddings_initializer=initializer,
            name="token_embedding",
        ),
        LearnedPositionEmbedding(
            numbers["max_sequence_length"],
            embeddings_initializer=initializer,
            name="position_embedding",
        ),
        Dropout(dropout, name="embeddings_dropout"),
    ]
    for index in range(numbers["num_layers"]):
        block = TransformerDecoderBlock(
            numbers["num_heads"],
            numbers["mlp_dim"],
            key_dim=numbers["key_dim"],
            activation=activation,
            norm_first=numbers["norm_first"],
            window=numbers["window"] if index % 2 else None,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            kernel_initializer=initializer,
            output_initializer=residual if numbers["norm_first"] else None,
            name=f"block_{index}",
        )
        parts.append(block)
    if numbers["norm_first"]:
        parts.append(LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm"))
    part = {layer.name: layer for layer in parts}
    inputs = _inputs()
    positions = token_positions(inputs["padding_mask"])
    hidden, _ = _read(part, inputs["token_ids"], positions, inputs["padding_mask"])
    logits = part["token_embedding"](hidden, reverse=True)
    return GPT(inputs=inputs, outputs=logits, name=name)


def _read(part, token_ids, positions, padding_mask, caches=None):
    """Features (B, T, D) and every block's keys and values, a pair of (B, N, T, H).

    Args:
        part: Layers by name.
        token_ids: (B, T).
        positions: (B, T).
        padding_mask: (B, T), or with caches (B, L + T).
        caches: Earlier keys and values of every block, for a step.
    """
    hidden = part["token_embedding"](token_ids)
    hidden = part["position_embedding"](hidden, positions)
    hidden = part["embeddings_dropout"](hidden)
    after = []
    for index, block in enumerate(incremental.blocks(part, "block")):
        cache = None if caches is None else caches[index]
        # Asked for even where nobody takes it, and then never computed: Keras can't
        # join graphs in which a layer returns now one tensor, now two.
        hidden, added = block(
            hidden, padding_mask=padding_mask, cache=cache, return_cache=True
        )
        after.append(added)
    if "final_norm" in part:
        hidden = part["final_norm"](hidden)
    return hidden, after


@keras.saving.register_keras_serializable("keras_attn")
class GPT(Functional):
    """The functional model of `build_gpt`, which can decode."""

    @property
    def max_length(self) -> int:
        """Most tokens that prompt and continuation may have together."""
        return incremental.parts(self)["position_embedding"].max_sequence_length

    def incremental(self, max_length=None) -> IncrementalPair:
        """Its two halves for decoding; prompts may be padded on either side.

        The state is what `keras_attn.models.parts.incremental` says.

        Args:
            max_length: L, the most tokens that prompt and continuation have together.
                Default: as many as there are positions.

        Raises:
            ValueError: for more than there are.
        """
        part = incremental.parts(self)
        length = incremental.check_length(max_length, self.max_length, is_hard=True)
        return IncrementalPair(
            _prefill(part, length), _step(part, length), max_length=length
        )


def _prefill(part, length):
    """Reads the prompt, and makes room behind it."""
    inputs = _inputs()
    mask = inputs["padding_mask"]
    hidden, caches = _read(part, inputs["token_ids"], token_positions(mask), mask)
    outputs = {
        "logits": incremental.last_logits(part, hidden, mask),
        **incremental.state_behind(mask, caches, length),
    }
    return keras.Model(inputs, outputs, name="prefill")


def _step(part, length):
    """Reads one token a row."""
    attentions = [b.self_attention for b in incremental.blocks(part, "block")]
    inputs = incremental.step_inputs(attentions, length)
    now = incremental.DecodingStep(inputs)
    hidden, added = _read(
        part, now.token_ids, now.positions, now.padding_mask, now.caches
    )
    outputs = {
        "logits": part["token_embedding"](hidden[:, 0], reverse=True),
        **now.state_after(added),
    }
    return keras.Model(inputs, outputs, name="step")


def build_gpt_encoder(model="gpt2_small", *, name="gpt_encoder"):
    """The model without its vocabulary: features for other tasks.

    Args:
        model: A model from `build_gpt`, or the name of a variant.
        name: Of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to a dictionary of
        `sequence_output` (B, T, D) and `pooled_output` (B, D), the last real token.
    """
    if isinstance(model, str):
        model = build_gpt(model)
    if not isinstance(model, GPT):
        raise TypeError(
            "`model` must be the name of a variant, or a model from `build_gpt`. "
            f"Received: model={model!r}"
        )
    inputs, part = model.input, incremental.parts(model)
    positions = token_positions(inputs["padding_mask"])
    hidden, _ = _read(part, inputs["token_ids"], positions, inputs["padding_mask"])
    pooled = TokenPooling("last", name="last_token")(hidden, inputs["padding_mask"])
    outputs = {"sequence_output": hidden, "pooled_output": pooled}
    return Functional(inputs, outputs, name=name)


def build_gpt_classifier(
    model="gpt2_small", *, num_classes, dropout=0.1, name="gpt_classifier"
):
    """The class of a text, read off its last token.

    Args:
        model: A model from `build_gpt` or `build_gpt_encoder`, or the name of a
            variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the last token's features.
        name: Of the model.

    Returns:
        A model from `token_ids` and `padding_mask` to logits (B, C).

    Reference:
        Radford et al. 2018, section 3.2.
    """
    encoder = _as_encoder(model)
    last = encoder.output["pooled_output"]
    # One matrix, W_y, and no bias (equation 3).
    return heads.classifier(
        encoder, last, num_classes, dropout=dropout, use_bias=False, name=name
    )


def build_gpt_token_classifier(
    model="gpt2_small", *, num_classes, dropout=0.1, name="gpt_token_classifier"
):
    """The class of each token, from what stands before it.

    Args:
        model: A model from `build_gpt` or `build_gpt_encoder`, or the name of a
            variant.
        num_classes: C.
        dropout: Probability of dropping a unit of the features.
        name: Of the model.

    Returns:
        A model from `token_ids` and `padding_mask` to logits (B, T, C).
    """
    encoder = _as_encoder(model)
    tokens = encoder.output["sequence_output"]
    return heads.classifier(encoder, tokens, num_classes, dropout=dropout, name=name)


def _as_encoder(model):
    if isinstance(getattr(model, "output", None), dict):
        return heads.as_encoder(model, build_gpt_encoder)
    return build_gpt_encoder(model)


def _inputs():
    return {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
    }


def _card(name, title, paper, year, parameters, notes):
    return ModelCard(
        name=name,
        family="gpt",
        title=title,
        paper=paper,
        year=year,
        task="language model",
        parameters=parameters,
        inputs={
            "token_ids": "(B, T) int32",
            "padding_mask": "(B, T) bool, True = a real token",
        },
        outputs={"logits": "(B, T, V), of the token that follows each"},
        notes=notes,
    )


_PAPERS = {
    "gpt": ("Radford et al. 2018, Generative Pre-Training", 2018),
    "gpt2": ("Radford et al. 2019, Unsupervised Multitask Learners", 2019),
    "gpt3": ("Brown et al. 2020, arXiv:2005.14165", 2020),
    "megatron": ("Shoeybi et al. 2019, arXiv:1909.08053", 2019),
}
_TITLES = {
    "gpt": "GPT, a causal decoder with post-norm blocks",
    "gpt2": "GPT-2, a causal decoder with pre-norm blocks",
    "gpt3": "GPT-3, dense and banded sparse blocks in turn",
    "megatron": "Megatron-LM, GPT-2 at scale",
}
for _name, _count, _notes in (
    ("gpt_117m", 117_000_000, "SST-2 91.3; RACE 59.0"),
    ("gpt2_small", 117_000_000, "WikiText-103 perplexity 37.50, zero-shot"),
    ("gpt2_medium", 345_000_000, "WikiText-103 perplexity 26.37, zero-shot"),
    ("gpt2_large", 762_000_000, "WikiText-103 perplexity 22.05, zero-shot"),
    ("gpt2_xl", 1_542_000_000, "WikiText-103 perplexity 17.48, zero-shot"),
    ("gpt3_small", 125_000_000, "batches of 0.5 million tokens"),
    ("gpt3_medium", 350_000_000, "batches of 0.5 million tokens"),
    ("gpt3_large", 760_000_000, "batches of 0.5 million tokens"),
    ("gpt3_xl", 1_300_000_000, "batches of 1 million tokens"),
    ("gpt3_2p7b", 2_700_000_000, "batches of 1 million tokens"),
    ("gpt3_6p7b", 6_700_000_000, "batches of 2 million tokens"),
    ("gpt3_13b", 13_000_000_000, "batches of 2 million tokens"),
    ("gpt3_175b", 175_000_000_000, "batches of 3.2 million tokens"),
    ("megatron_1p2b", 1_200_000_000, "one model-parallel device"),
    ("megatron_2p5b", 2_500_000_000, "two model-parallel devices"),
    ("megatron_4p2b", 4_200_000_000, "four model-parallel devices"),
    ("megatron_8p3b", 8_300_000_000, "WikiText-103 perplexity 10.81, zero-shot"),
):
    _family = _name.split("_")[0]
    register(
        _card(_name, _TITLES[_family], *_PAPERS[_family], _count, _notes),
        build_gpt,
        _name,
    )
