"""Ask, attend and answer."""

from model_family import GRID, POSITIONS, C, E, Graph, V, dense


def ask_attend_answer():
    """Words, three embeddings of places, a sum of 25 positions, and answers."""
    places = 3 * dense(1024, 1000)
    return 7477 * 1000 + places + 25 + 1000 + dense(1000, 1031)


GRAPHS = [
    Graph(
        "vqa_ask_attend_answer",
        {
            **GRID,
            "vocabulary_size": V,
            "max_question_length": POSITIONS,
            "embedding_dim": E,
            "num_answers": C,
        },
        {"vqa_ask_attend_answer": ask_attend_answer()},
        options={
            "scores": {
                "return_attention_scores": True,
                "return_word_correlations": True,
            },
            "one_hop": {"num_hops": 1},
        },
        exported=("vqa_ask_attend_answer-scores",),
    )
]
