"""Show, ask, attend and answer: a strong baseline for questions about an image.

    φ = CNN(I) / ‖CNN(I)‖                  `backbone`, `places`, `places_norm`
    s = LSTM(tanh(E q))                    `word_embedding`, `word_tanh`, `question`
    e_cl = F_c(s, φ_l)                     `glimpses`: two 1 × 1 convolutions
    x_c = Σ_l softmax(e_c)_l φ_l           `glimpses`: C glimpses of the image
    p(a) = softmax(G([x; s]))              `hidden`, `logits`: before the softmax

F is two layers with a ReLU between them; G is two layers as well. The forward pass is
the body of the builder, in this order; e and x are computed by
`layers/attention/glimpse_attention.py`.

Legend: B batch, T words, h and w rows and columns of the map, L = h·w locations, D
channels, C glimpses, A answers.
Layers: those above, and `word_dropout`, `flat_glimpses`, `evidence`,
`evidence_dropout`, `hidden_dropout`.
"""

import keras
from keras.layers import Activation, Concatenate, LSTMCell, Reshape, UnitNormalization

from keras_attn.checks.argument_types import Probability
from keras_attn.layers import Dense, Embedding, GlimpseAttention
from keras_attn.layers.dropout import Dropout
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.feature_grid import places_and_text
from keras_attn.models.parts.decoders.recurrent_parts import recurrent_layer
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.heads import logits_layer

# Kazemi and Elqursh 2017, section 4; the map is from a ResNet-152 on an image of 448
# pixels. The paper does not state the vocabulary size; 15,000 is our choice.
VARIANTS = {
    "base": {
        "vocabulary_size": 15_000,
        "embedding_dim": 300,
        "hidden_dim": 1024,
        "attention_dim": 512,
        "num_glimpses": 2,
        "classifier_dim": 1024,
        "num_answers": 3000,
        "grid_size": 14,
        "feature_dim": 2048,
    }
}
CARDS = model_cards(
    "vqa_show_ask_attend_answer",
    {"base": None},
    scores=[
        scored("VQA 1.0 accuracy", "test-standard", "", {"base": 64.6}),
        scored("VQA 2.0 accuracy", "validation", "", {"base": 59.7}),
    ],
    title="Show, ask, attend and answer: an LSTM and two glimpses",
    paper="Kazemi and Elqursh 2017, arXiv:1704.03162",
    **tasks.question_answering("(B, 14, 14, 2048) float, ResNet-152's last map"),
)


@registered(CARDS, VARIANTS)
def build_vqa_show_ask_attend_answer(
    variant: str = "base",
    *,
    backbone: keras.Model | None = None,
    vocabulary_size: int = FROM_VARIANT,
    embedding_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    num_glimpses: int = FROM_VARIANT,
    classifier_dim: int = FROM_VARIANT,
    num_answers: int = FROM_VARIANT,
    grid_size: int | tuple[int, int] = FROM_VARIANT,
    feature_dim: int = FROM_VARIANT,
    dropout: Probability = 0.5,
    return_attention_scores: bool = False,
    name: str = "show_ask_attend_answer",
) -> Functional:
    """An LSTM reads the question, looks at the image a few times, and answers.

    Train it with `losses.SoftAnswerCrossEntropy`, Adam, batches of 128 questions, and
    a learning rate of 0.001 that halves every 50,000 steps, for 100,000 steps.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        backbone: A functional Keras model from images to a map. None = the model takes
            precomputed features. The paper's backbone is not trained.
        vocabulary_size: Number of words.
        embedding_dim: Width of the word embeddings.
        hidden_dim: Units of the LSTM.
        attention_dim: Depth of the first convolution of the attention.
        num_glimpses: C, depth of the second.
        classifier_dim: Units of the classifier's hidden layer.
        num_answers: A.
        grid_size: h and w of `features`, one number or two, without a backbone.
        feature_dim: D of `features`, without a backbone.
        dropout: Probability in [0, 1) of dropping an input of the LSTM, of a
            convolution or of a fully connected layer.
        return_attention_scores: Whether the model also returns the attention.
        name: Name of the model.

    Returns:
        A model from `features` (B, h, w, D), or `images` with a backbone, `token_ids`
        (B, T) and `padding_mask` (B, T) to logits (B, A); with
        `return_attention_scores=True` to a dictionary of `logits` and
        `attention_scores` (B, C, L).

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `backbone` does not output a map, or a size is not a positive
            integer.

    Reference:
        Kazemi and Elqursh 2017, "Show, Ask, Attend, and Answer: A Strong Baseline For
        Visual Question Answering" (arXiv:1704.03162).
    """
    inputs, places = places_and_text(
        ["token_ids", "padding_mask"], backbone, grid_size, feature_dim
    )
    # In float32: in half precision the norm of a location may be too large or vanish.
    places = UnitNormalization(dtype="float32", name="places_norm")(places)  # (B, L, D)

    words = Embedding(vocabulary_size, embedding_dim, name="word_embedding")(
        inputs["token_ids"]
    )
    words = Activation("tanh", name="word_tanh")(words)
    words = Dropout(dropout, name="word_dropout")(words)
    cell = LSTMCell(hidden_dim, name="question_cell")
    _, question, _ = recurrent_layer(cell, "question")(
        words, mask=inputs["padding_mask"]
    )

    glimpses, scores = GlimpseAttention(
        attention_dim, num_glimpses, dropout=dropout, name="glimpses"
    )(question, places, return_attention_scores=True)
    flat = Reshape((num_glimpses * places.shape[-1],), name="flat_glimpses")(glimpses)

    evidence = Concatenate(name="evidence")([flat, question])
    evidence = Dropout(dropout, name="evidence_dropout")(evidence)
    hidden = Dense(classifier_dim, activation="relu", name="hidden")(evidence)
    hidden = Dropout(dropout, name="hidden_dropout")(hidden)
    logits = logits_layer(num_answers, "logits")(hidden)
    outputs = logits
    if return_attention_scores:
        outputs = {"logits": logits, "attention_scores": scores[:, :, 0]}
    return Functional(inputs=inputs, outputs=outputs, name=name)
