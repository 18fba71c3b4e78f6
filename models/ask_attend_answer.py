"""Ask, attend and answer: a spatial memory network for questions about an image.

    v_t                                   `word_embedding`: a question of T words
    Q = Σ_t w_t v_t + b_Q                 `question`
    C = V (S W_A + b_A)ᵀ                  `attention_embedding`: word by location
    α¹ = softmax_l(max_t C_tl)            `hop_0`: each location's best word counts
    O = Σ_l α¹_l (S W_E + b_E)_l + Q      `evidence_embedding_0`, `hop_0`, `evidence_0`
    α² = softmax_l((S W_E + b_E)_l · O)   `hop_1`: the question and what was seen
    O² = Σ_l α²_l (S W_E' + b_E')_l + O   `evidence_embedding_1`, `hop_1`, `evidence_1`
    p = softmax(W_P relu(O²) + b_P)       `answer`, `logits`: before the softmax

S holds the locations of a CNN's last map, row by row. With one hop the answer follows
from O. The forward pass is the body of the builder, in this order; α¹ is computed by
`layers/attention/word_guided_attention.py`, α² by
`layers/attention/dot_product_attention.py`.

Legend: B batch, T words, h and w rows and columns of the map, L = h·w locations, C
channels, N embedding width, A answers.
Layers: those above, and `backbone`, `places`, `places_dropout`, `answer_dropout`.
"""

import keras
from keras import ops
from keras.layers import Activation, Add

from keras_attn.checks.argument_types import Probability
from keras_attn.checks.arguments import check_choice
from keras_attn.layers import (
    Dense,
    DotProductAttention,
    Embedding,
    PositionWeightedSum,
    WordGuidedAttention,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.feature_grid import places_and_text
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import logits_layer

# The network that the authors published for VQA, with two hops over GoogLeNet's map
# `inception_5b/output` of an image of 224 pixels: 25 words, 7,477 rows of embeddings.
VARIANTS = {
    "base": {
        "num_hops": 2,
        "vocabulary_size": 7477,
        "max_question_length": 25,
        "embedding_dim": 1000,
        "num_answers": 1031,
        "grid_size": 7,
        "feature_dim": 1024,
    }
}
CARDS = model_cards(
    "vqa_ask_attend_answer",
    {"base": None},
    scores=[scored("VQA 1.0 accuracy", "test-standard", "", {"base": 58.24})],
    title="Ask, attend and answer: attention by words, then by the whole question",
    paper="Xu and Saenko 2016, arXiv:1511.05234",
    **tasks.question_answering("(B, 7, 7, 1024) float, GoogLeNet's last map"),
)


@registered(CARDS, VARIANTS)
def build_vqa_ask_attend_answer(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    num_hops: int = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    max_question_length: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    num_answers: int = FROM_VARIANT,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    dropout: Probability = 0.4,
    return_attention_scores: bool = False,
    return_word_correlations: bool = False,
    name: str = "ask_attend_answer",
) -> Functional:
    """The spatial memory network: words, then the whole question, choose locations.

    Padded words take no part; the published network embeds them like any other.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        backbone: A functional Keras model from images to a map. None = the model takes
            precomputed features.
        num_hops: 1 or 2.
        vocabulary_size: Number of words.
        max_question_length: Number of words of the longest question.
        embedding_dim: N, width of the embeddings of words and locations.
        num_answers: A.
        grid_size: h and w of `features`, one number or two, without a backbone.
        feature_dim: C of `features`, without a backbone.
        dropout: Probability in [0, 1) of dropping a channel of a location, and a unit
            before the last layer.
        return_attention_scores: Whether the model also returns the attention.
        return_word_correlations: Whether it also returns the scores of each word.
        name: Name of the model.

    Returns:
        A model from `features` (B, h, w, C), or `images` with a backbone, `token_ids`
        (B, T) and `padding_mask` (B, T) to logits (B, A); with
        `return_attention_scores` or `return_word_correlations` to a dictionary of
        `logits` and the requested outputs: `attention_scores` (B, hops, L), and
        `word_correlations` (B, T, L), C before the softmax, 0 for padding.

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `backbone` does not output a map, `num_hops` is not 1 or 2, or a
            size is not a positive integer.

    Reference:
        Xu and Saenko 2016, "Ask, Attend and Answer: Exploring Question-Guided Spatial
        Attention for Visual Question Answering" (arXiv:1511.05234).
    """
    check_choice("num_hops", num_hops, (1, 2))
    inputs, places = places_and_text(
        ["token_ids", "padding_mask"], backbone, grid_size, feature_dim
    )
    mask = inputs["padding_mask"]
    places = Dropout(dropout, name="places_dropout")(places)  # (B, L, C)

    words = Embedding(vocabulary_size, embedding_dim, name="word_embedding")(
        inputs["token_ids"]
    )
    question = PositionWeightedSum(max_question_length, name="question")(words, mask)

    evidence = Dense(embedding_dim, name="evidence_embedding_0")(places)
    seen, weights, correlations = WordGuidedAttention(name="hop_0")(
        words,
        evidence,
        Dense(embedding_dim, name="attention_embedding")(places),
        padding_mask=mask,
        return_attention_scores=True,
    )
    output = Add(name="evidence_0")([seen, question])
    scores = [weights]

    if num_hops == 2:
        seen, weights = DotProductAttention("dot", name="hop_1")(
            ops.expand_dims(output, 1),
            Dense(embedding_dim, name="evidence_embedding_1")(places),
            evidence,
            return_attention_scores=True,
        )
        output = Add(name="evidence_1")([ops.squeeze(seen, 1), output])
        scores.append(ops.squeeze(weights, 1))

    output = Activation("relu", name="answer")(output)
    output = Dropout(dropout, name="answer_dropout")(output)
    logits = logits_layer(num_answers, "logits")(output)
    outputs = {"logits": logits}
    if return_attention_scores:
        outputs["attention_scores"] = ops.stack(scores, axis=1)
    if return_word_correlations:
        outputs["word_correlations"] = correlations
    if len(outputs) == 1:
        outputs = logits
    return Functional(inputs=inputs, outputs=outputs, name=name)
