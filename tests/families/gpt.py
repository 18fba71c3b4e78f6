"""GPT, GPT-2, Megatron and GPT-3."""

from model_family import CLASSES, POSITIONED, Graph, dense

from keras_attn.models.gpt import VARIANTS


def gpt(vocabulary, positions, width, layers, heads=None, norms=True):
    """`heads` is the width of all heads together. Default: the width of the model."""
    heads = heads or width
    attention = 3 * dense(width, heads) + dense(heads, width)
    network = dense(width, 4 * width) + dense(4 * width, width)
    blocks = layers * (attention + network + 2 * 2 * width)
    return (vocabulary + positions) * width + blocks + 2 * width * norms


_LAYERS = {name: row["num_layers"] for name, row in VARIANTS.items()}
GRAPHS = [
    Graph(
        "gpt_117m",
        POSITIONED,
        {"gpt_117m": 116_534_784},  # Counted by `transformers`.
        pairs=(),
        layers=_LAYERS,
    ),
    Graph(
        "gpt2_small",
        POSITIONED,
        {
            # Counted by `transformers`; the largest sizes, summed over the shapes of
            # the weights.
            "gpt2_small": 124_439_808,
            "gpt2_medium": 354_823_168,
            "gpt2_large": 774_030_080,
            "gpt2_xl": 1_557_611_200,
            # Shoeybi et al. 2019, table 1.
            "megatron_1p2b": gpt(51_200, 1024, 1536, 40),
            "megatron_2p5b": gpt(51_200, 1024, 1920, 54),
            "megatron_4p2b": gpt(51_200, 1024, 2304, 64),
            "megatron_8p3b": gpt(51_200, 1024, 3072, 72),
        },
        heads={
            "gpt_encoder": {},
            "gpt_classifier": CLASSES,
            "gpt_token_classifier": CLASSES,
        },
        pairs=(),  # Without bands its state is that of GPT-3.
        layers=_LAYERS,
    ),
    Graph(
        "gpt3_small",
        {**POSITIONED, "window": 2},
        {
            # Brown et al. 2020, table 2.1.
            "gpt3_small": gpt(50_257, 2048, 768, 12),
            "gpt3_medium": gpt(50_257, 2048, 1024, 24),
            "gpt3_large": gpt(50_257, 2048, 1536, 24),
            "gpt3_xl": gpt(50_257, 2048, 2048, 24),
            "gpt3_2p7b": gpt(50_257, 2048, 2560, 32),
            "gpt3_6p7b": gpt(50_257, 2048, 4096, 32),
            "gpt3_13b": gpt(50_257, 2048, 5140, 40, heads=5120),
            "gpt3_175b": gpt(50_257, 2048, 12_288, 96),
        },
        layers=_LAYERS,
    ),
]
