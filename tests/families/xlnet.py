"""XLNet and its heads."""

from model_family import BLOCKS, ENCODER_HEADS, Graph, S

GRAPHS = [
    Graph(
        "xlnet_base",
        BLOCKS,
        # Counted by `transformers`.
        {"xlnet_base": 116_718_336, "xlnet_large": 360_268_800},
        options={"memory": {"memory_length": S}},
        heads={
            **{
                f"xlnet_{head}": options
                for head, options in ENCODER_HEADS.items()
                if head != "masked_lm"
            },
            "xlnet_permutation_lm": {},
            "xlnet_permutation_lm-content": {"two_stream": False},
        },
        exported=("xlnet_span_qa",),
        layers={"xlnet_large": 24},
    )
]
