"""BERT and its heads."""

from families.gpt import gpt
from model_family import ENCODER_HEADS, POSITIONED, Graph, dense


def bert(width, layers):
    """With 30,522 tokens, 512 positions, 2 segments, and a pooler."""
    blocks = gpt(30_522, 512, width, layers)  # BERT's embeddings norm for the last.
    return blocks + 2 * width + dense(width, width)


GRAPHS = [
    Graph(
        "bert_base",
        POSITIONED,
        {
            "bert_tiny": bert(128, 2),
            "bert_mini": bert(256, 4),
            "bert_small": bert(512, 4),
            "bert_medium": bert(512, 8),
            # Counted by `transformers`.
            "bert_base": 109_482_240,
            "bert_large": 335_141_888,
        },
        heads={
            **{f"bert_{head}": options for head, options in ENCODER_HEADS.items()},
            "bert_masked_lm-positions": {"masked_positions": True},
            "bert_pretrainer": {},
            "bert_sentence_encoder-first": {"pooling": "first", "normalize": False},
        },
        exported=("bert_masked_lm-positions", "bert_sentence_encoder"),
        layers={"bert_large": 24},
    )
]
