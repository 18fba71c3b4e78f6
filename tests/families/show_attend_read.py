"""Show, attend and read."""

from model_family import A, E, Graph, M, U, V, dense, gate


def show_attend_read(characters):
    """A ResNet of kernels and norms, four LSTMs of 512, and 2-D attention."""
    kernels, inputs = [(9, 3, 64), (9, 64, 128)], 128
    for width, blocks in ((256, 1), (256, 2), (512, 5), (512, 3)):
        if inputs != width:  # The shortcut of the first block.
            kernels.append((1, inputs, width))
        kernels.append((9, inputs, width))
        kernels += 2 * blocks * [(9, width, width)]  # The last is that of the stage.
        inputs = width
    count = sum(size * one * other + 4 * other for size, one, other in kernels)
    attention = 9 * 512 * 512 + 512 * 512 + 512
    words = characters * 512 + dense(2 * 512, characters)
    return count + 4 * 4 * gate(512, 512) + attention + words


GRAPHS = [
    Graph(
        "show_attend_read",
        {
            "image_size": (19, 26),
            "stem_dims": (5, U),
            "hidden_dims": (U, U, E, M),
            "num_blocks": (1, 1, 1, 1),
            "vocabulary_size": V,
            "hidden_dim": U,
            "attention_dim": A,
        },
        {"show_attend_read": show_attend_read(98)},
        options={
            "any_width": {
                "image_size": (19, None),
                "widths": False,
                "return_attention_scores": True,
            }
        },
    )
]
