"""RNNsearch, with each score."""

from families.seq2seq import readout
from model_family import SEQ2SEQ, A, Graph, M, dense, gate

SCORES = ("additive", "dot", "scaled_dot", "general", "linear")


def rnnsearch(source, target, e, u, a, m, score="additive"):
    annotation = u if score in ("dot", "scaled_dot") else 2 * u
    attention = {
        "additive": u * a + annotation * a + a,
        "general": u * annotation,
        "linear": u + annotation,
    }.get(score, 0)
    return (
        (source + target) * e
        + 2 * 3 * gate(e, u)
        + dense(u, u)
        + attention
        + 3 * gate(e + annotation, u)
        + readout(u, e, annotation, m, target)
    )


GRAPHS = [
    Graph(
        "rnnsearch_50",
        {**SEQ2SEQ, "attention_dim": A, "maxout_dim": M},
        dict.fromkeys(
            ("rnnsearch_30", "rnnsearch_50"),
            rnnsearch(30_000, 30_000, 620, 1000, 1000, 500),
        ),
        options={
            **{score: {"score": score} for score in SCORES[1:]},
            "scores": {"return_attention_scores": True, "dropout": 0.3},
        },
    )
]
