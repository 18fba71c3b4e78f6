"""Memory of a training step that XLA compiles for a TPU, from the graph of the step.

XLA computes most tensors of a graph inside the operation that reads them and never
stores them. What it stores, and for how long, follows from these rules, which were read
from what the compiler of TPUs made of GPT-2, ViT and U-Net; `benchmarks/RESULTS.md`
compares the peak for others.

1.  *Elementwise operations are fused.* What follows from stored tensors by elementwise
    operations, changes of layout, weights, constants and random numbers is computed
    again by each operation that reads it, in both passes: a cast, a GELU, the mask of a
    dropout. So is a softmax of a product alone; that of scores with a bias or a mask is
    stored.
2.  *Products, convolutions, reductions and gathers are stored*, in the narrowest type
    on the way to a reader, the widest of its readers.
3.  *A sum is stored instead of its terms.* Where two stored tensors of at least the
    size of the result meet, as in a residual connection, the result is stored.
4.  *A product reads stored tensors or an activation function of one.* What also needs
    statistics, such as the output of a layer norm, is stored for it, and so is what
    takes an error function (the exact GELU): both in 16 bits, which products read.
5.  *Gradients of weights are not stored*: the optimizer uses each where it is computed,
    and those of a weight that is used several times are added up in one tensor.
6.  *The gradient of an output is stored* in the type of the output: the loss computes
    it while it reads the output.
7.  *A loop keeps what its backward pass reads* of every step: JAX decides so before XLA
    fuses anything.
8.  *Tensors are stored in tiles* of 8 x 128 numbers: of the last two axes, in the order
    that wastes less; of heads as the product of queries and keys reads them; of maps
    the channels and the rows of the batch. Convolutions read a copy of the images in
    tiles.
9.  *Gradients of the kernels of convolutions are computed last*, so what they are
    computed from is kept. (The compiler does so in U-Net; in ResNet it computes most at
    once, and the estimate is too high.)
10. *A tensor is freed after its last reader*; the peak is the largest sum of those that
    live at one time.
11. *A table that is looked up and multiplied by*, as embeddings are whose weights the
    logits share, has a copy in 16 bits if products are in 16 bits.
12. *The vector memory of the chip holds a part of them*: 64 MiB are taken off, half of
    what v5e and v6e have, because the other half is the operations' own and holds
    copies of what is also in the main memory. Only this number is an estimate; it
    matters where the peak is a few hundred megabytes.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_attn.models.plans.tpu_tiles import map_bytes, tiled_bytes

# Operations that move numbers and compute none.
_LAYOUT = frozenset(
    "Bitcast BroadcastTo ExpandDims Identity IdentityN PreventGradient Reshape Slice "
    "Snapshot Split SplitV Squeeze StopGradient StridedSlice Tile Transpose Unpack "
    "CheckNumerics".split()
)
_ELEMENTWISE = frozenset(
    "Abs Add AddN AddV2 Atan2 BiasAdd BitwiseAnd BitwiseOr BitwiseXor Cast ClipByValue "
    "ConcatV2 Cos Div DivNoNan Elu EluGrad Equal Erf Erfc Exp Expm1 Floor FloorDiv "
    "FloorMod Greater GreaterEqual Inv InvGrad IsFinite IsNan LeakyRelu LeakyReluGrad "
    "LeftShift Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr Maximum "
    "Minimum MirrorPad Mod Mul MulNoNan Neg NotEqual Pack Pad PadV2 Pow RealDiv "
    "Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad ReverseV2 RightShift Roll "
    "Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin "
    "Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad "
    "Xdivy Xlogy".split()
)
# Operations without a tensor of the batch, which cost nothing.
_CONSTANT = frozenset(
    "AssignVariableOp BroadcastGradientArgs Const Fill InvertPermutation LinSpace "
    "OnesLike Placeholder RandomUniform Range Rank ReadVariableOp Shape ShapeN Size "
    "StatelessRandomNormalV2 StatelessRandomUniformFullIntV2 StatelessRandomUniformV2 "
    "VarHandleOp ZerosLike".split()
)
_PRODUCTS = ("MatMul", "BatchMatMul", "Conv2D", "Conv3D", "DepthwiseConv", "Einsum")
_CONVOLUTIONS = ("Conv2D", "DepthwiseConv")
_IN_VECTOR_MEMORY = 64 * 2**20


@dataclass
class _Stored:
    """A tensor that has memory of its own, from its birth to its last reader."""

    shape: tuple[int, ...]
    width: int  # Bytes of an element.
    birth: int
    last: int
    width_read: int = 0  # The widest in which it is read; 0 if nobody does.
    is_map: bool = False  # Whether a convolution reads or writes it.
    padding: float = 1.0  # Of the tiles in which products of many matrices read it.

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        width = min(self.width, self.width_read)
        if self.is_map and len(self.shape) == 4:
            return map_bytes(self.shape, width)
        return max(
            tiled_bytes(self.shape, width), int(self.size * width * self.padding)
        )


def peak_memory(
    operations: Sequence[Any],
    seeds: Mapping[str, Any],
    kept_by_loops: Collection[str] = (),
) -> int:
    """Bytes in the main memory at the peak of a step, without weights and inputs.

    Args:
        operations: TensorFlow's, of the forward and the backward pass, in this order.
            Loops are unrolled.
        seeds: The output of the model for each operation that stands for its gradient.
        kept_by_loops: Names of tensors that a loop keeps for its backward pass.
    """
    return StepMemory(operations, seeds, kept_by_loops).in_main_memory


class StepMemory:
    """The stored tensors of a step; the arguments are those of `peak_memory`."""

    def __init__(self, operations, seeds, kept_by_loops=()):
        self._operations = list(operations)
        self._seeds = seeds
        self._kept = kept_by_loops
        self._index = {each.name: i for i, each in enumerate(self._operations)}
        # For each tensor, the stored ones that it follows from, with the narrowest type
        # on the way, in bytes.
        self._roots: dict[str, dict[str, int]] = {}
        self.stored: dict[str, _Stored] = {}
        # Tensors that follow from stored ones by way of an error function.
        self._costly: set[str] = set()
        # When each variable was looked up first.
        self._tables: dict[str, int] = {}
        for index, operation in enumerate(self._operations):
            self._add(index, operation)
        # From the end, so that the readers of a tensor are known before its own inputs
        # are read: a tensor that nobody reads reads nothing.
        for index in reversed(range(len(self._operations))):
            self._read_inputs(index)

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return self.at_peak()[0]

    def at_peak(self) -> tuple[int, int]:
        """Bytes at the peak, and the index of the operation where it is."""
        changes = [0] * (len(self._operations) + 1)
        for each in self.stored.values():
            if each.width_read:
                changes[each.birth] += each.bytes
                changes[each.last + 1] -= each.bytes
        now, best = 0, (0, 0)
        for index, change in enumerate(changes):
            now += change
            best = max(best, (now, index), key=lambda pair: pair[0])
        return best

    @property
    def in_main_memory(self) -> int:
        """Bytes at the peak that the vector memory does not hold."""
        return max(self.peak - _IN_VECTOR_MEMORY, 0)

    def _add(self, index, operation):
        kind = operation.type
        if kind in ("GatherV2", "ResourceGather"):
            table = _variable(operation.inputs[0])
            if table is not None:
                self._tables.setdefault(table.name, index)
        if operation.name in self._seeds:
            output = self._roots.get(self._seeds[operation.name].name, {})
            tensor = operation.outputs[0]
            width = min([tensor.dtype.size, *output.values()])
            self._store(tensor, index, width)
            for name, each in output.items():
                self._mark(name, index, each)
            return
        if kind in _CONSTANT:
            return
        roots: dict[str, int] = {}
        for tensor in operation.inputs:
            for name, width in self._roots.get(tensor.name, {}).items():
                roots[name] = max(width, roots.get(name, 0))
        if kind in ("Erf", "Erfc") or (
            (kind in _ELEMENTWISE or kind in _LAYOUT)
            and any(each.name in self._costly for each in operation.inputs)
        ):
            self._costly.update(each.name for each in operation.outputs)
        for tensor in operation.outputs:
            if not tensor.shape.is_fully_defined():
                continue  # What a fused norm keeps for other devices.
            if tensor.name in self._kept:
                self._store(tensor, index, tensor.dtype.size)
            elif kind in _LAYOUT:
                self._roots[tensor.name] = roots
            elif self._is_fused(operation, tensor):
                self._add_elementwise(index, tensor, roots)
            elif roots or kind.startswith(_PRODUCTS):
                width = tensor.dtype.size
                if kind.startswith(_PRODUCTS):
                    width = min(width, self._product_width(operation))
                self._store(tensor, index, width)
                self.stored[tensor.name].is_map = kind.startswith(_CONVOLUTIONS)

    def _is_fused(self, operation, tensor):
        kind = operation.type
        if kind.startswith("FusedBatchNorm"):
            # The others are statistics.
            return tensor.name == operation.outputs[0].name
        if kind == "Softmax":
            return self._source(operation.inputs[0]) in self.stored
        return kind in _ELEMENTWISE

    def _source(self, tensor):
        """Name of the tensor that another is made of by functions of it alone."""
        while tensor.name not in self.stored:
            operation = tensor.op
            if operation.type not in _LAYOUT and operation.type not in _ELEMENTWISE:
                break
            others = [x for x in operation.inputs if x.shape.num_elements() != 1]
            if len(others) != 1:
                break
            tensor = others[0]
        return tensor.name

    def _add_elementwise(self, index, tensor, roots):
        width, size = tensor.dtype.size, math.prod(tensor.shape)
        large = sum(self.stored[name].size >= size for name in roots)
        if large > 1:
            self._store(tensor, index, width)
        else:
            self._roots[tensor.name] = {n: min(w, width) for n, w in roots.items()}

    def _store(self, tensor, index, width):
        self._costly.discard(tensor.name)
        self.stored[tensor.name] = _Stored(tuple(tensor.shape), width, index, index)
        self._roots[tensor.name] = {tensor.name: width}

    def _product_width(self, operation):
        """Bytes of an element of the operands, which TensorFlow may have widened.

        Under a mixed policy it multiplies 16-bit features by a float32 weight where
        JAX casts the weight.
        """
        widths = [
            max(roots.values())
            for roots in (self._roots.get(each.name) for each in operation.inputs)
            if roots
        ]
        return min(widths, default=8)

    def _read_inputs(self, index):
        operation = self._operations[index]
        kind = operation.type
        if kind in _CONSTANT or kind in _LAYOUT or not operation.outputs:
            return
        if self._is_fused(operation, operation.outputs[0]) and not any(
            each.name in self.stored and self.stored[each.name].width_read
            for each in operation.outputs
        ):
            return
        is_product = kind.startswith(_PRODUCTS)
        width = self._product_width(operation) if is_product else 8
        if "BackpropFilter" in kind:
            index = len(self._operations) - 1
        added = set()
        if kind == "AddN":
            added = self._add_in_place(index, operation)
        for tensor in operation.inputs:
            roots = self._roots.get(tensor.name, {})
            if tensor.name in added:
                continue
            if kind.startswith(_CONVOLUTIONS):
                roots = self._read_map(index, operation, tensor, roots)
            if is_product and not roots and width < 4:
                self._read_table(index, tensor, width)
            if is_product and (len(roots) > 1 or tensor.name in self._costly):
                roots = self._stored_for_product(tensor, roots)
            if kind.startswith("BatchMatMul") and roots:
                padding = tiled_bytes(tensor.shape, 1) / tensor.shape.num_elements()
                for name in roots:
                    stored = self.stored[name]
                    stored.padding = max(stored.padding, padding)
            for name, each in roots.items():
                self._mark(name, index, min(each, width))

    def _add_in_place(self, index, operation):
        """Rule 5: names of the terms that are added up as they are computed."""
        total = self.stored[operation.outputs[0].name]
        terms = {
            tensor.name
            for tensor in operation.inputs
            if tensor.name in self.stored and not self.stored[tensor.name].width_read
        }
        births = [self.stored[name].birth for name in terms]
        total.birth = min([total.birth, *births])
        return terms

    def _read_table(self, index, tensor, width):
        """Rule 11."""
        table = _variable(tensor)
        if table is not None and table.name in self._tables:
            if table.name not in self.stored:
                birth = self._tables[table.name]
                shape = tuple(tensor.shape)
                self.stored[table.name] = _Stored(shape, width, birth, birth)
            self._mark(table.name, index, width)

    def _read_map(self, index, operation, tensor, roots):
        """Rule 8: a convolution reads a copy of an input of the model in its tiles."""
        is_kernel = tensor is operation.inputs[-1] and "Backprop" not in operation.type
        if (
            not roots
            and len(tensor.shape) == 4
            and not is_kernel
            and not _is_weight(tensor)
        ):
            roots = {tensor.name: tensor.dtype.size}
            if tensor.name not in self.stored:
                self.stored[tensor.name] = _Stored(
                    tuple(tensor.shape), tensor.dtype.size, index, index
                )
            stored = self.stored[tensor.name]
            stored.birth = min(stored.birth, index)
        for name in roots:
            self.stored[name].is_map = True
        return roots

    def _stored_for_product(self, tensor, roots):
        """Rule 4: the operand itself, before changes of layout and wider types."""
        while tensor.op.type in _LAYOUT or (
            tensor.op.type == "Cast"
            and tensor.op.inputs[0].dtype.size <= tensor.dtype.size
        ):
            tensor = tensor.op.inputs[0]
        if tensor.name not in self.stored:
            before = self._roots.get(tensor.name)
            before = roots if before is None else before
            birth = self._index[tensor.op.name]
            for name, each in before.items():
                self._mark(name, birth, each)
            # Other readers go on to compute it from what is stored.
            self.stored[tensor.name] = _Stored(
                tuple(tensor.shape), min(tensor.dtype.size, 2), birth, birth
            )
        return {tensor.name: self.stored[tensor.name].width}

    def _mark(self, name, index, width):
        stored = self.stored[name]
        stored.last = max(stored.last, index)
        stored.width_read = max(stored.width_read, width)


def is_in(operation, layers: Collection[str]) -> bool:
    """Whether an operation belongs to one of the layers, by their names."""
    scopes = {re.sub(r"(_\d+)+$", "", part) for part in operation.name.split("/")}
    return not scopes.isdisjoint(re.sub(r"(_\d+)+$", "", name) for name in layers)


def _is_weight(tensor):
    return _origin(tensor).op.type in ("ReadVariableOp", "Const")


def _variable(tensor):
    """The handle of the variable whose value a tensor is; None for another tensor."""
    tensor = _origin(tensor)
    if tensor.op.type == "ReadVariableOp":
        return tensor.op.inputs[0]
    return tensor if tensor.dtype.name == "resource" else None


def _origin(tensor):
    while tensor.op.type in ("Cast", "Transpose", "Reshape", "Identity"):
        tensor = tensor.op.inputs[0]
    return tensor
