"""Segmenters composed of PyTorch's layers, with tiny random weights.

Each case is a flat dictionary of arrays: weights by the names of our layers with
PyTorch's names after them, in PyTorch's order of axes; `input_*` and `output_*` with
channels last. `generate.py` writes them to `segmenters/`.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch.nn import functional  # pyright: ignore[reportMissingImports]

B, CLASSES = 2, 5
WIDTHS, COUNTS = (3, 4), (2, 1)
SIZE = (11, 13)
FCN_WIDTHS, FCN_SIZE = (3, 4, 5, 4, 5), (9, 14)


def make_cases():
    """Name of every case to its arrays."""
    return {
        "pooling_valid_2": pooling(2, ceil_mode=False),
        "pooling_same_2": pooling(2, ceil_mode=True),
        "pooling_valid_3": pooling(3, ceil_mode=False),
        "transposed": transposed(),
        "segnet": _Case().run(segnet, SIZE),
        "deconvnet": _Case().run(deconvnet, SIZE),
        "unet_valid": _Case().run(unet_valid, (44, 48), size=(4, 8)),
        "unet_same": _Case().run(unet_same, SIZE),
        "fcn_32s": fcn(1, {}, 32, 19),
        "fcn_16s": fcn(2, {3: 5}, 16, 27),
        "fcn_8s": fcn(2, {3: 5, 2: 9}, 8, 31),
    }


def pooling(window, ceil_mode):
    """Pooling, unpooling of other values, and both gradients; with equal maxima."""
    rng = np.random.default_rng(3)
    images = rng.integers(-2, 3, (B, *SIZE, 3)).astype("float32")
    inputs = _first(images).requires_grad_()
    values, indices = functional.max_pool2d(
        inputs, window, ceil_mode=ceil_mode, return_indices=True
    )
    others = torch.cos(values.detach()).requires_grad_()
    restored = functional.max_unpool2d(others, indices, window, output_size=SIZE)
    factors = rng.normal(size=images.shape).astype("float32")
    (restored * _first(factors)).sum().backward()
    (values * others.detach()).sum().backward()
    return {
        "input_images": images,
        "input_factors": factors,
        "output_values": _last(values),
        "output_indices": _last(indices),
        "output_restored": _last(restored),
        "output_images_gradient": _last(inputs.grad),
        "output_values_gradient": _last(others.grad),
    }


def transposed():
    """`ConvTranspose2d` with another number in each place."""
    case = _Case()

    def run(case, images):
        layer = torch.nn.ConvTranspose2d(
            3, 5, (4, 5), stride=(2, 3), padding=(1, 0), output_padding=(1, 2)
        )
        return case.named("transposed", layer)(images)

    return case.run(run, (5, 4), size=None)


def segnet(case, images):
    """Convolutions, batch norms, pooling and unpooling; see `models/segnet.py`."""
    hidden, pooled = _encoder(case, images)
    for stage in (1, 0):
        hidden = _unpool(hidden, pooled[stage])
        # The last convolution of the first stage is the classifier.
        for index in range(COUNTS[stage] - (stage == 0)):
            is_last = stage and index == COUNTS[stage] - 1
            width = WIDTHS[max(0, stage - 1) if is_last else stage]
            hidden = case.conv(hidden, width, 3, f"decoder_{stage}_conv_{index}")
            hidden = case.normed(hidden, f"decoder_{stage}_norm_{index}")
    return case.conv(hidden, CLASSES, 3, "classifier", bias=True)


def deconvnet(case, images):
    """Fully connected layers as convolutions, and deconvolutions."""
    hidden, pooled = _encoder(case, images)
    hidden = case.conv(hidden, 7, 2, "fully_connected_0", padding=0)
    hidden = case.normed(hidden, "fully_connected_0_norm")
    hidden = case.conv(hidden, 6, 1, "fully_connected_1", padding=0)
    hidden = case.normed(hidden, "fully_connected_1_norm")
    hidden = case.deconv(hidden, WIDTHS[-1], 2, "decoder_fully_connected")
    hidden = case.normed(hidden, "decoder_fully_connected_norm")
    for stage in (1, 0):
        hidden = _unpool(hidden, pooled[stage])
        for index in range(COUNTS[stage]):
            is_last = index == COUNTS[stage] - 1
            width = WIDTHS[max(0, stage - 1) if is_last else stage]
            name = f"decoder_{stage}_conv_{index}"
            hidden = case.deconv(hidden, width, 3, name, padding=1)
            hidden = case.normed(hidden, f"decoder_{stage}_norm_{index}")
    return case.conv(hidden, CLASSES, 1, "classifier", padding=0, bias=True)


def _encoder(case, images):
    hidden, pooled = images, []
    for stage, (width, count) in enumerate(zip(WIDTHS, COUNTS, strict=True)):
        for index in range(count):
            hidden = case.conv(hidden, width, 3, f"stage_{stage}_conv_{index}")
            hidden = case.normed(hidden, f"stage_{stage}_norm_{index}")
        size = hidden.shape[2:]
        hidden, indices = functional.max_pool2d(
            hidden, 2, ceil_mode=True, return_indices=True
        )
        pooled.append((indices, size))
    return hidden, pooled


def _unpool(hidden, pooled):
    indices, size = pooled
    return functional.max_unpool2d(hidden, indices, (2, 2), output_size=size)


def unet_valid(case, images):
    """The paper's network: skips are cropped to the centre."""
    return _unet(case, images, padding=0, ceil_mode=False)


def unet_same(case, images):
    """Zeros around each map; odd ones are padded, and cropped at their end."""
    return _unet(case, images, padding=1, ceil_mode=True)


def _unet(case, images, padding, ceil_mode):
    def convolutions(hidden, width, name):
        for index in range(2):
            layer = f"{name}_conv_{index}"
            hidden = case.conv(hidden, width, 3, layer, padding=padding, bias=True)
            hidden = hidden.relu()
        return hidden

    widths = (3, 4, 5)
    hidden, maps = images, []
    for stage, width in enumerate(widths):
        if stage:
            maps.append(hidden)
            hidden = functional.max_pool2d(hidden, 2, ceil_mode=ceil_mode)
        hidden = convolutions(hidden, width, f"stage_{stage}")
    for stage in (1, 0):
        name = f"decoder_{stage}"
        layer = torch.nn.ConvTranspose2d(hidden.shape[1], widths[stage], 2, 2)
        hidden, skip = case.named(f"{name}_upsampling", layer)(hidden), maps[stage]
        if padding:
            hidden = hidden[:, :, : skip.shape[2], : skip.shape[3]]
        else:
            top, left = (
                (n - m) // 2
                for n, m in zip(skip.shape[2:], hidden.shape[2:], strict=True)
            )
            rows, columns = hidden.shape[2:]
            skip = skip[:, :, top : top + rows, left : left + columns]
        hidden = convolutions(torch.cat([skip, hidden], 1), widths[stage], name)
    return case.conv(hidden, CLASSES, 1, "classifier", padding=0, bias=True)


def fcn(classes, skips, factor, start):
    """The published network on VGG, with the offsets of its definition for Caffe.

    Args:
        classes: Number of classes; the last kernel is large.
        skips: Stages whose scores are added, and where they are cropped.
        factor: How many times the last layer enlarges the scores.
        start: First row and column of its result.
    """

    def network(case, images):
        size = images.shape[2:]
        hidden, pooled = images, []
        for stage, width in enumerate(FCN_WIDTHS):
            name, padding = f"stage_{stage}_conv_0", 1 if stage else 100
            hidden = case.conv(hidden, width, 3, name, padding=padding, bias=True)
            hidden = functional.max_pool2d(hidden.relu(), 2, ceil_mode=True)
            pooled.append(hidden)
        for index, (width, side) in enumerate(((6, 7), (5, 1))):
            name = f"fully_connected_{index}"
            hidden = case.conv(hidden, width, side, name, padding=0, bias=True).relu()
        hidden = case.conv(hidden, classes, 1, "classifier", padding=0, bias=True)

        def enlarged(hidden, name, stride):
            layer = torch.nn.ConvTranspose2d(
                classes, classes, 2 * stride, stride, bias=False
            )
            return case.named(name, layer)(hidden)

        for stage, first in skips.items():
            hidden, name = enlarged(hidden, f"upsampling_{stage}", 2), f"score_{stage}"
            score = case.conv(pooled[stage], classes, 1, name, padding=0, bias=True)
            hidden = hidden + _cropped(score, first, hidden.shape[2:])
        return _cropped(enlarged(hidden, "upsampling", factor), start, size)

    return _Case().run(network, FCN_SIZE, size=FCN_SIZE, classes=classes)


def _cropped(maps, start, size):
    rows, columns = size
    return maps[:, :, start : start + rows, start : start + columns]


class _Case:
    """Samples weights, and records them with the images and the logits."""

    def __init__(self):
        self.rng = np.random.default_rng(11)
        self.arrays = {}

    def run(self, network, image_size, size=SIZE, classes=CLASSES):
        images = self.rng.normal(size=(B, *image_size, 3)).astype("float32")
        self.arrays["input_images"] = images
        with torch.no_grad():
            logits = _last(network(self, _first(images)))
        if size is not None and logits.shape[1:] != (*size, classes):
            raise RuntimeError(f"{network.__name__} gave {logits.shape}")
        self.arrays["output_logits"] = logits
        return self.arrays

    def named(self, name, module):
        """The module with random weights, in inference mode."""
        for key, tensor in module.state_dict().items():
            if key == "num_batches_tracked":
                continue
            values = self.rng.normal(size=tensor.shape)
            values *= 1.5 / np.sqrt(max(1, np.prod(tensor.shape[1:])))
            if key == "running_var":
                values = np.abs(values) + 0.5
            # Stored in 16 bits.
            values = values.astype("float16")
            self.arrays[f"{name}.{key}"] = values
            tensor.copy_(torch.from_numpy(values.astype("float32")))
        return module.eval()

    def conv(self, hidden, width, size, name, padding=None, bias=False):
        padding = size // 2 if padding is None else padding
        layer = torch.nn.Conv2d(
            hidden.shape[1], width, size, padding=padding, bias=bias
        )
        return self.named(name, layer)(hidden)

    def deconv(self, hidden, width, size, name, padding=0):
        layer = torch.nn.ConvTranspose2d(
            hidden.shape[1], width, size, padding=padding, bias=False
        )
        return self.named(name, layer)(hidden)

    def normed(self, hidden, name):
        layer = torch.nn.BatchNorm2d(hidden.shape[1])
        return self.named(name, layer)(hidden).relu()


def _first(array):
    """Channels first, as a tensor."""
    return torch.from_numpy(array.transpose(0, 3, 1, 2).copy())


def _last(tensor):
    """Channels last, as an array."""
    return tensor.detach().numpy().transpose(0, 2, 3, 1).copy()
