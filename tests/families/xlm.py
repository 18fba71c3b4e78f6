"""XLM, with two heads of BERT."""

from model_family import OWN_HEADS, POSITIONED, Graph

GRAPHS = [
    Graph(
        "xlm_mlm_tlm_xnli15",
        {**POSITIONED, "num_languages": 2},
        {"xlm_mlm_tlm_xnli15": 248_976_384},  # Counted by `transformers`.
        options={"positions": {"position_ids": True}},
        heads={f"xlm_{head}": options for head, options in OWN_HEADS.items()},
    )
]
