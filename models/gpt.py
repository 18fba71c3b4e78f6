"""GPT, GPT-2, GPT-3 and Megatron: decoders that learn by predicting the next token.

    x = token_embedding[token_ids] + position_embedding[positions]        (B, T, D)
    in block i, pre-norm as from GPT-2 on:
        [q, k, v] = norm(x) W + b                                  each (B, N, T, H)
        x = x + softmax(q kᵀ / √H) v W^O + b, causal, the heads concatenated
        x = x + activation(norm(x) W1 + b1) W2 + b2
    logits = norm(x) token_embeddingᵀ                                     (B, T, V)

    build_gpt  token ids -> logits of the next token at every position

Classifiers on its features: `gpt_tasks.py`.
`incremental()` gives the same forward pass with key/value caches. `prefill` runs
`features` over the prompt, (B, P), and returns logits (B, V) and the state:

    key_i, value_i  k and v of block i, (B, G, L, H), zeros after the P first slots
    visible         (B, L), which slots hold a real token
    position        (B,), the number of real tokens, so the position of the next
    cache_index     (B,), the slot that is written next, here P

`step` runs `features` over the last token, (B,), so T = 1, and over the state. k and v
are then the token's own, and it attends to visible slots and to itself:

    x = x + softmax([q key_iᵀ, q kᵀ] / √H) [value_i; v] W^O + b

It returns logits (B, V) and the changes: `new_key_i` = k and `new_value_i` = v,
(B, G, 1, H), which `decoding.next_state` writes at `cache_index`; `visible` with that
slot; `position` + 1; `cache_index` + 1 (`models/parts/decoders/incremental.py`).

Blocks: `layers/blocks/transformer_block.py`; attention:
`layers/attention/multi_head_attention.py`. `@registered` fills in the arguments whose
default is `FROM_VARIANT`.

Legend: B batch, T length, P prompt length, L cache length, N heads, G key/value heads
(here N), H head size, D width, V vocabulary, C classes.
Layers: `token_embedding`, `position_embedding`, `embeddings_dropout`, `block_0`, …,
and `final_norm` if the blocks are pre-norm. `incremental()` finds them by these names.
More than 400 lines, as one builder has the sizes and cards of four papers.
"""

import functools
import math

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import TransformerDecoderBlock
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import (
    FROM_VARIANT,
    block_options,
    block_sizes,
)
from keras_attn.models.parts.bert_encoder import (
    bert_encoder,
    position_embedding,
    token_embedding,
)
from keras_attn.models.parts.decoders import incremental
from keras_attn.models.parts.decoders.pair_builders import build_pair
from keras_attn.models.parts.functional import (
    DOCUMENTS,
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.ops import (
    document_mask,
    document_positions,
    gelu_tanh,
    token_positions,
)

_gpt = functools.partial(
    block_sizes,
    vocabulary_size=40_478,
    max_sequence_length=512,
    norm_first=False,
    window=None,
)
_gpt2 = functools.partial(
    block_sizes,
    vocabulary_size=50_257,
    max_sequence_length=1024,
    norm_first=True,
    window=None,
)
# The paper specifies the pattern but not the width of the band; 256 is our choice.
_gpt3 = functools.partial(_gpt2, max_sequence_length=2048, window=256)
# 50,257 tokens, padded so that eight devices can share them evenly.
_megatron = functools.partial(_gpt2, vocabulary_size=51_200)

VARIANTS = {
    # Radford et al. 2018, section 4.1.
    "gpt_117m": _gpt(num_layers=12, hidden_dim=768, num_heads=12),
    # Radford et al. 2019, table 2; all heads have 64 units.
    "gpt2_small": _gpt2(num_layers=12, hidden_dim=768, num_heads=12),
    "gpt2_medium": _gpt2(num_layers=24, hidden_dim=1024, num_heads=16),
    "gpt2_large": _gpt2(num_layers=36, hidden_dim=1280, num_heads=20),
    "gpt2_xl": _gpt2(num_layers=48, hidden_dim=1600, num_heads=25),
    # Brown et al. 2020, table 2.1. It gives "XL" 24 heads of 128 units at a width of
    # 2048, which would make 1.5 billion parameters; 16 heads make its 1.3 billion. The
    # 40 heads of "13B" have 128 units each, together a little less than the width.
    "gpt3_small": _gpt3(num_layers=12, hidden_dim=768, num_heads=12),
    "gpt3_medium": _gpt3(num_layers=24, hidden_dim=1024, num_heads=16),
    "gpt3_large": _gpt3(num_layers=24, hidden_dim=1536, num_heads=16),
    "gpt3_xl": _gpt3(num_layers=24, hidden_dim=2048, num_heads=16),
    "gpt3_2p7b": _gpt3(num_layers=32, hidden_dim=2560, num_heads=32),
    "gpt3_6p7b": _gpt3(num_layers=32, hidden_dim=4096, num_heads=32),
    "gpt3_13b": _gpt3(num_layers=40, hidden_dim=5140, num_heads=40),
    "gpt3_175b": _gpt3(num_layers=96, hidden_dim=12_288, num_heads=96),
    # Shoeybi et al. 2019, table 1.
    "megatron_1p2b": _megatron(num_layers=40, hidden_dim=1536, num_heads=16),
    "megatron_2p5b": _megatron(num_layers=54, hidden_dim=1920, num_heads=20),
    "megatron_4p2b": _megatron(num_layers=64, hidden_dim=2304, num_heads=24),
    "megatron_8p3b": _megatron(num_layers=72, hidden_dim=3072, num_heads=32),
}
_cards = functools.partial(model_cards, "{variant}", **tasks.LANGUAGE_MODEL)
# Parameters, perplexity in WikiText-103 (table 3).
_GPT2 = {
    "gpt2_small": (117_000_000, 37.50),
    "gpt2_medium": (345_000_000, 26.37),
    "gpt2_large": (762_000_000, 22.05),
    "gpt2_xl": (1_542_000_000, 17.48),
}
# Parameters, the FLOPs of training (table D.1), accuracy in LAMBADA (table H.1).
_GPT3 = {
    "gpt3_small": (125_000_000, 2.25e20, 42.7),
    "gpt3_medium": (350_000_000, 6.41e20, 54.3),
    "gpt3_large": (760_000_000, 1.37e21, 60.4),
    "gpt3_xl": (1_300_000_000, 2.38e21, 63.6),
    "gpt3_2p7b": (2_700_000_000, 4.77e21, 67.1),
    "gpt3_6p7b": (6_700_000_000, 1.20e22, 70.3),
    "gpt3_13b": (13_000_000_000, 2.31e22, 72.5),
    "gpt3_175b": (175_000_000_000, 3.14e23, 76.2),
}
CARDS = {
    **_cards(
        {"gpt_117m": 117_000_000},
        title="GPT, a causal decoder with post-norm blocks",
        paper="Radford et al. 2018, Generative Pre-Training",
        training=Training(
            "BooksCorpus",
            "section 4.1; openai.com/index/language-unsupervised",
            hardware="P600",
            devices=8,
            hours=30 * 24,
            flops=0.96e15 * 86_400,
        ),
        scores=[
            scored("SST-2 accuracy", "", "table 4", {"gpt_117m": 91.3}),
            scored("RACE accuracy", "", "table 3", {"gpt_117m": 59.0}),
        ],
    ),
    **_cards(
        {variant: count for variant, (count, _) in _GPT2.items()},
        title="GPT-2, a causal decoder with pre-norm blocks",
        paper="Radford et al. 2019, Unsupervised Multitask Learners",
        training=Training("WebText", "section 2.1", gigabytes=40),
        scores=[
            scored(
                "WikiText-103 perplexity",
                "zero-shot",
                "table 3",
                {variant: score for variant, (_, score) in _GPT2.items()},
            )
        ],
    ),
    **_cards(
        {
            "megatron_1p2b": 1_200_000_000,
            "megatron_2p5b": 2_500_000_000,
            "megatron_4p2b": 4_200_000_000,
            "megatron_8p3b": 8_300_000_000,
        },
        title="Megatron-LM, GPT-2 at scale",
        paper="Shoeybi et al. 2019, arXiv:1909.08053",
        # 300,000 steps of 512 rows of 1,024 tokens; an epoch is 68,507 of them.
        notes="four sizes for 1, 2, 4 and 8 devices, of which two were trained, the "
        "largest with 24 heads",
        training={
            variant: Training(
                "Wikipedia, CC-Stories, RealNews, OpenWebText",
                "sections 4.1 and 4.2, table 2",
                gigabytes=174,
                tokens=300_000 * 512 * 1024,
                hardware="v100",
                devices=devices,
                hours=days_of_epoch * 24 * 300_000 / 68_507,
            )
            for variant, devices, days_of_epoch in (
                ("megatron_2p5b", 128, 2.27),
                ("megatron_8p3b", 512, 2.10),
            )
        },
        scores=[
            scored(
                "WikiText-103 perplexity",
                "zero-shot",
                "table 3",
                {"megatron_2p5b": 12.76, "megatron_8p3b": 10.81},
            )
        ],
    ),
    **_cards(
        {variant: count for variant, (count, *_) in _GPT3.items()},
        title="GPT-3, dense and banded sparse blocks in turn",
        paper="Brown et al. 2020, arXiv:2005.14165",
        training={
            variant: Training(
                "Common Crawl, WebText2, books, Wikipedia",
                "sections 2.2 and 2.3, tables 2.1 and D.1",
                tokens=300e9,
                hardware="v100",
                flops=flops,
            )
            for variant, (_, flops, _) in _GPT3.items()
        },
        scores=[
            scored(
                "LAMBADA accuracy",
                "zero-shot",
                "table H.1",
                {variant: score for variant, (*_, score) in _GPT3.items()},
            )
        ],
    ),
}


@registered(CARDS, VARIANTS)
@described_as(bert_encoder)
def build_gpt(
    variant: str = "gpt2_small",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    key_dim: int | None = None,
    mlp_dim: int = FROM_VARIANT,
    max_sequence_length: int = FROM_VARIANT,
    norm_first: bool = FROM_VARIANT,
    window: int | None = FROM_VARIANT,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: Epsilon = 1e-5,
    dropout: Probability = 0.1,
    attention_dropout: Probability = 0.1,
    name: str = "gpt",
) -> "GPT":
    """Token and position embeddings, then causal blocks; the embeddings are tied.

    GPT's blocks are post-norm. From GPT-2 on they are pre-norm, a norm follows the last
    block, and the residual output kernels' initial standard deviation is divided by
    √(2 · `num_layers`). In GPT-3 every second block attends within a band.

    Positions count the real tokens, so a prompt may be padded on either side.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V.
        hidden_dim: D.
        key_dim: H. Default: D / N, rounded down.
        max_sequence_length: Number of positions.
        norm_first: Pre-norm (True) or post-norm.
        window: Number of tokens, including itself, that a query attends to in blocks 1,
            3, 5, …. A window of `max_sequence_length` has no effect.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to logits (B, T, V).
        It also takes `document_ids`, (B, T), where a row holds several texts: a token
        attends only to its own text, and positions begin again with each text.

    Reference:
        Radford et al. 2018, "Improving Language Understanding by Generative
        Pre-Training"; Radford et al. 2019, "Language Models are Unsupervised
        Multitask Learners"; Shoeybi et al. 2019 (arXiv:1909.08053); Brown et al. 2020
        (arXiv:2005.14165); the band: Child et al. 2019 (arXiv:1904.10509).
    """
    initializer = normal(0.02)
    residual = normal(0.02 / math.sqrt(2 * num_layers)) if norm_first else None
    layers = [
        token_embedding(vocabulary_size, hidden_dim, initializer),
        position_embedding(max_sequence_length, initializer),
        Dropout(dropout, name="embeddings_dropout"),
    ]
    options = {
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "key_dim": hidden_dim // num_heads if key_dim is None else key_dim,
        "norm_first": norm_first,
        **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        "kernel_initializer": initializer,
        "output_initializer": residual,
    }
    # Pre-norm: `x = x + f(norm(x))`, where f is causal self-attention, then a
    # feed-forward network; post-norm, as in GPT: `x = norm(x + f(x))`.
    for index in range(num_layers):
        band = window if index % 2 else None
        block = TransformerDecoderBlock(**options, window=band, name=f"block_{index}")
        layers.append(block)
    if norm_first:
        layers.append(LayerNormalization(epsilon=layer_norm_epsilon, name="final_norm"))
    layers = by_name(layers)
    inputs = sequence_inputs("token_ids", "padding_mask")
    positions = token_positions(inputs["padding_mask"])
    hidden, _ = features(layers, positions=positions, **inputs)
    # The product with the transposed embeddings.
    logits = layers["token_embedding"](hidden, reverse=True)
    return GPT(inputs=inputs, outputs=logits, name=name)


def features(
    layers, token_ids, positions, padding_mask, caches=None, attention_mask=None
):
    """Features (B, T, D), and the keys and values of every block, (B, G, T, H).

    Args:
        layers: Layers by name.
        token_ids: (B, T).
        positions: (B, T).
        padding_mask: (B, T), or with caches (B, L + T).
        caches: In a step, the keys and values of all earlier tokens for every block.
        attention_mask: (B, T, T), True = attend; combined with the causal mask.
    """
    blocks = numbered(layers, "block")
    hidden = layers["token_embedding"](token_ids)
    hidden = layers["position_embedding"](hidden, positions)
    hidden = layers["embeddings_dropout"](hidden)
    entries = []
    for block, cache in zip(blocks, caches or [None] * len(blocks), strict=True):
        # No `cache_index`: the cache is only read. `entry` is k and v of the tokens.
        # Keys and values are always returned; unused ones are not computed. A layer
        # that is called again may return fewer tensors than at first, but not more.
        hidden, entry = block(
            hidden,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            cache=cache,
            return_cache=True,
        )
        entries.append(entry)
    if "final_norm" in layers:
        hidden = layers["final_norm"](hidden)
    return hidden, entries


@keras.saving.register_keras_serializable("keras_attn")
class GPT(Functional):
    """The functional model of `build_gpt`, with incremental decoding.

    Texts that share a row, as in `data.completion_dataset(packed=True)`, are told apart
    by a third input, `document_ids`, integers (B, T), which may be left out: a token
    attends to tokens of its own document, whose positions begin at 0.
    """

    takes_documents = True

    def call(self, inputs, training=None, mask=None):
        """Logits (B, T, V)."""
        if not isinstance(inputs, dict) or DOCUMENTS not in inputs:
            return super().call(inputs, training, mask)
        layers = by_name(self.layers)
        token_ids, padding_mask, document_ids = (
            ops.convert_to_tensor(inputs[name], dtype)
            for name, dtype in (
                ("token_ids", "int32"),
                ("padding_mask", "bool"),
                (DOCUMENTS, "int32"),
            )
        )
        hidden, _ = features(
            layers,
            token_ids,
            document_positions(padding_mask, document_ids),
            padding_mask,
            attention_mask=document_mask(document_ids),
        )
        return layers["token_embedding"](hidden, reverse=True)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens in the prompt and its continuation."""
        return self.get_layer("position_embedding").max_sequence_length

    def incremental(self, max_length=None, *, extend=False) -> IncrementalPair:
        """The models for decoding token by token; prompts may be padded on either side.

        `keras_attn.models.gpt` describes the state.

        Args:
            max_length: L, the maximum number of tokens in the prompt and its
                continuation. Default: the number of positions.
            extend: Whether the pair reads several tokens at once too, which
                `speculation` needs.

        Raises:
            ValueError: If `max_length` exceeds the number of positions.
        """
        layers = by_name(self.layers)
        length = incremental.check_cache_length(
            max_length, self.max_length, is_limit=True
        )

        def prefill(inputs):
            """Reads the prompt and pads its keys and values to the caches' length."""
            padding_mask = inputs["padding_mask"]
            positions = token_positions(padding_mask)
            hidden, caches = features(layers, positions=positions, **inputs)
            logits = incremental.next_token_logits(layers, hidden, padding_mask)
            return logits, incremental.state_after_prompt(padding_mask, caches, length)

        def read(now):
            """Reads the tokens of a step, whose `padding_mask` is (B, L + T)."""
            return features(
                layers, now.token_ids, now.positions, now.padding_mask, now.caches
            )

        def step(token_ids, state):
            """Reads one token per row."""
            now = incremental.DecodingStep(token_ids, state)
            hidden, entries = read(now)
            logits = layers["token_embedding"](hidden[:, 0], reverse=True)
            return logits, now.state_after(entries)

        def read_several(token_ids, state):
            """Reads several tokens per row."""
            hidden, entries = read(incremental.DecodingStep(token_ids, state))
            logits = layers["token_embedding"](hidden, reverse=True)
            return logits, incremental.name_caches(entries, "new_")

        inputs = sequence_inputs("token_ids", "padding_mask")
        # The two functions as Keras models that share the layers of this model.
        return build_pair(
            inputs,
            prefill,
            step,
            extend=read_several if extend else None,
            max_length=length,
        )
