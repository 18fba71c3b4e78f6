"""Show, ask, attend and answer."""

from model_family import GRID, MLP, A, C, E, Graph, U, V, dense


def show_ask_attend_answer():
    """The second convolution has no bias."""
    question = 15_000 * 300 + 4 * dense(300 + 1024, 1024)
    attention = dense(2048 + 1024, 512) + 512 * 2
    return question + attention + dense(2 * 2048 + 1024, 1024) + dense(1024, 3000)


GRAPHS = [
    Graph(
        "vqa_show_ask_attend_answer",
        {
            **GRID,
            "vocabulary_size": V,
            "embedding_dim": E,
            "hidden_dim": U,
            "attention_dim": A,
            "classifier_dim": MLP,
            "num_answers": C,
        },
        {"vqa_show_ask_attend_answer": show_ask_attend_answer()},
        options={"scores": {"return_attention_scores": True}},
        exported=("vqa_show_ask_attend_answer-scores",),
    )
]
