"""A kernel with LoRA weights: `x W + s (x A) B`.

A layer computes `ops.weight_products.product(x, kernel)`: `ops.matmul(x, W)` while the
kernel is a variable, and `kernel.product(x)` of a `LowRankKernel`, which
`KernelLayer.add_update` puts in its place.

Legend: D width of the inputs, E width of the outputs, r rank.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_attn.layers.adaptation.tracking import set_untracked, unlocked
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops.weight_products import (
    convolution,
    kernel_rows,
    kernel_value,
    product,
    transposed_product,
)

# Parts of the outputs, each from a first column up to, but without, a last one.
Columns = tuple[int, int]


class LowRankKernel(keras.layers.Layer):
    """`W + Σ_u s_u A_u B_u`, of which products are computed without forming the sum.

    `x W + s (x A) B` needs no gradient of the size of W, unlike `x (W + s A B)`.

    Args:
        kernel: W, a variable (…, D, E) or a `QuantizedKernel`. A variable still belongs
            to its layer, which saves it as before.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Attributes:
        base: W.
        updates: The LoRA weights by name of their adapter.

    Reference:
        Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section
        4.1 (arXiv:2106.09685).
    """

    def __init__(self, kernel, **kwargs):
        super().__init__(**kwargs)
        self.shape = tuple(kernel.shape)
        self.updates = {}
        self.replace_base(kernel)
        self.built = True

    def add(self, update: "LowRankUpdate") -> None:
        """Adds LoRA weights."""
        update.build(self.shape)
        with unlocked(self):
            self.updates[update.name] = update

    def replace_base(self, base) -> None:
        """Replaces W by a variable or a `QuantizedKernel`; the LoRA weights stay."""
        with unlocked(self):
            before = self.__dict__.pop("base", None)
            if isinstance(before, keras.layers.Layer):
                self._tracker.untrack(before)
            if isinstance(base, keras.layers.Layer):
                self.base = base
                # Always in the same order: files number the weights.
                self._layers.sort(key=lambda layer: layer is not base)
            else:
                set_untracked(self, "base", base)

    def product(self, rows):
        """`x W + Σ s (x A) B`: (..., D) -> (..., E)."""
        outputs = product(rows, self.base)
        for update in self.updates.values():
            outputs = ops.add(outputs, update(rows))
        return outputs

    def transposed_product(self, rows):
        """`x Wᵀ + Σ s (x Bᵀ) Aᵀ`: (..., E) -> (..., D)."""
        outputs = transposed_product(rows, self.base)
        for update in self.updates.values():
            down = ops.matmul(rows, ops.transpose(update.up))
            up = ops.matmul(update.scaled(down), ops.transpose(update.down))
            outputs = ops.add(outputs, up)
        return outputs

    def kernel_rows(self, indices):
        """Rows of `W + Σ s A B`: integers (...) -> (..., E)."""
        outputs = kernel_rows(self.base, indices)
        for update in self.updates.values():
            down = update.scaled(ops.take(update.down, indices, axis=0))
            outputs = ops.add(outputs, ops.matmul(down, update.up))
        return outputs

    def convolution(self, function, inputs):
        """The convolution with W, and a thin one with A, whose outputs B mixes."""
        outputs = convolution(function, inputs, self.base)
        for update in self.updates.values():
            down = update.scaled(function(update.drop(inputs), update.down))
            outputs = ops.add(outputs, ops.matmul(down, update.up))
        return outputs

    def value_as_tensor(self):
        """`W + Σ s A B`, (…, D, E)."""
        value = ops.convert_to_tensor(kernel_value(self.base))
        for update in self.updates.values():
            value = ops.add(value, ops.cast(update.value(), value.dtype))
        return value


def get_base(kernel):
    """W of a kernel with or without LoRA weights."""
    return kernel.base if isinstance(kernel, LowRankKernel) else kernel


class LowRankUpdate(keras.layers.Layer):
    """`s (x A) B` for columns of the outputs of one kernel.

    A fused kernel may have LoRA weights for several parts of its columns, each with an
    A and a B of its own: `x [A₁ A₂]` is one product, and so is what follows, with a
    matrix whose blocks are B₁ and B₂.

    Args:
        rank: r, of all parts or of each.
        scale: s, of all parts or of each: α/r, or α/√r in rank-stabilized LoRA.
        columns: The parts of the columns. None = one for all of them.
        dropout: Probability in [0, 1) of dropping an input of A.
        a_initializer: Initializer of each A, (…, D, r). Default: Kaiming's uniform
            numbers with a = √5, as in PEFT.
        b_initializer: Initializer of each B, (r, width of the part).
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., E), zero in columns of no part.
    """

    def __init__(
        self,
        rank: int | Sequence[int],
        scale: float | Sequence[float],
        *,
        columns: tuple[Columns, ...] | None = None,
        dropout: float = 0.0,
        a_initializer=None,
        b_initializer="zeros",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.rank = rank
        self.initial_scale = scale
        self.columns: tuple[Columns, ...] = columns or ()
        self.dropout = dropout
        self.a_initializer = a_initializer or keras.initializers.VarianceScaling(
            1 / 3, mode="fan_in", distribution="uniform", seed=seed
        )
        self.b_initializer = keras.initializers.get(b_initializer)
        self.seed = seed
        self.drop = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)

    def build(self, kernel_shape):
        *inner, width = kernel_shape
        self.width = width
        self.columns = self.columns or ((0, width),)
        parts = len(self.columns)
        self.ranks = tuple(np.broadcast_to(self.rank, parts).tolist())
        self.scales = tuple(np.broadcast_to(self.initial_scale, parts).tolist())
        self.a_kernels, self.b_kernels = [], []
        for index, (start, stop) in enumerate(self.columns):
            down, up = (*inner, self.ranks[index]), (self.ranks[index], stop - start)
            self.a_kernels.append(self._add(f"a_{index}", down, self.a_initializer))
            self.b_kernels.append(self._add(f"b_{index}", up, self.b_initializer))
        # 0 switches the adapter off, also in functions that are compiled already.
        self.scale = self.add_weight(
            name="scale",
            shape=self._scale_when_on().shape,
            initializer=keras.initializers.Constant(self._scale_when_on()),
            trainable=False,
            dtype="float32",
        )

    def _add(self, name, shape, initializer):
        initializer = independent_copy(initializer, f"{self.name}/{name}")
        # Float32 under every policy: small steps would be lost in half precision.
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, dtype="float32"
        )

    def switch(self, is_on: bool) -> None:
        """Switches the LoRA weights on or off."""
        value = self._scale_when_on()
        self.scale.assign(value if is_on else np.zeros_like(value))

    def _scale_when_on(self):
        """One number, or one for each of Σr columns if parts have different scales."""
        scales = np.repeat(self.scales, self.ranks).astype("float32")
        return scales if len({*self.scales}) > 1 else scales[0]

    @property
    def pairs(self):
        """A and B of each part."""
        return list(zip(self.a_kernels, self.b_kernels, strict=True))

    @property
    def down(self):
        """All A side by side, (…, D, Σr)."""
        return _joined([self._cast(kernel) for kernel in self.a_kernels])

    @property
    def up(self):
        """The blocks B, (Σr, E), zero elsewhere."""
        blocks = []
        for (start, stop), kernel in zip(self.columns, self.b_kernels, strict=True):
            kernel = self._cast(kernel)
            if (start, stop) != (0, self.width):
                kernel = ops.pad(kernel, ((0, 0), (start, self.width - stop)))
            blocks.append(kernel)
        return blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=0)

    def scaled(self, down):
        """`s (x A)`: (..., Σr) -> (..., Σr)."""
        return ops.multiply(down, self._cast(self.scale))

    def call(self, inputs, training=None):
        rows = self.drop(inputs, training=training) if self.dropout else inputs
        return ops.matmul(self.scaled(ops.matmul(rows, self.down)), self.up)

    def value(self):
        """`s A B`, (…, D, E)."""
        down = ops.multiply(_joined(self.a_kernels), self.scale)
        return ops.tensordot(down, self.up, axes=1)

    def _cast(self, variable):
        return ops.cast(variable, self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.width)


def _joined(kernels):
    if len(kernels) == 1:
        return ops.convert_to_tensor(kernels[0])
    return ops.concatenate(kernels, axis=-1)
