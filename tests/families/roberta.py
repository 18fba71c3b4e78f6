"""RoBERTa, with two heads of BERT."""

from model_family import OWN_HEADS, POSITIONED, Graph

GRAPHS = [
    Graph(
        "roberta_base",
        POSITIONED,
        # Counted by `transformers`.
        {"roberta_base": 124_645_632, "roberta_large": 355_359_744},
        heads={f"roberta_{head}": options for head, options in OWN_HEADS.items()},
        layers={"roberta_large": 24},
    )
]
