"""Tiny folders that the libraries' own save functions write, with their outputs.

`python tests/parity/own_references.py` takes half a minute and writes one folder per
case to `checkpoints/`, with an `expected.npz` as in `hugging_face.py`.

| library                     | saves by                                       |
|-----------------------------|------------------------------------------------|
| timm                        | `timm.models._hub.save_for_hf`                 |
| segmentation-models-pytorch | `model.save_pretrained`                        |
| transformers                | `model.save_pretrained`, and an image processor's |

Needs what `make install` puts beside torchvision; see `torchvision_shim.py`.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import smp_unet_references as unet  # First: the shim.

# isort: split
import segmentation_models_pytorch as smp  # pyright: ignore[reportMissingImports]
import timm  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import PADDING, run_from_first_token
from timm.models._hub import save_for_hf  # pyright: ignore[reportMissingImports]
from torch_models import pixels_of, random_images, randomize_parameters
from torchvision_references import CLASSES, RESNET_SIZES
from write_folders import write

B, V = 2, 29
_CONVNEXT_SIZE = (35, 70)
NAMES = ["ant", "bee", "cat", "dog", "elk"]


@dataclass(frozen=True)
class Case:
    """A model of a library.

    Attributes:
        make: Returns the model.
        library: As in `save_checkpoint`.
        save: Writes a model to a folder, by the library's own function.
        load: Reads a folder, by the library's own function.
        run: Returns the inputs and the outputs of a model, by our names.
        is_committed: Whether the folder is small enough.
    """

    make: Callable[[], Any]
    library: Any
    save: Callable[[Any, Path], object]
    load: Callable[[Path], Any]
    run: Callable[[Any], dict[str, np.ndarray]]
    is_committed: bool = True


def randomized(model, is_tiny=True):
    """The model with other weights and statistics than those it starts with.

    Args:
        model: A model of PyTorch.
        is_tiny: Whether weights become far larger than initial ones, so that outputs
            vary; in a deep model they would grow from layer to layer.
    """
    rng = randomize_parameters(model) if is_tiny else np.random.default_rng(11)
    with torch.no_grad():
        for key, buffer in sorted(model.named_buffers()):
            if key.endswith("running_mean"):
                values = rng.normal(0, 0.3, buffer.shape)
            elif key.endswith("running_var"):
                values = rng.uniform(0.5, 2, buffer.shape)
            else:
                continue
            buffer.copy_(torch.from_numpy(values.astype("float32")))
    return model.eval()


def images_of(*shape):
    """Images (B, H, W, channels), and the tensor that PyTorch takes."""
    images = random_images(B, *shape)
    return images, pixels_of(images)


def _timm(name, is_committed=True, **options):
    options = {"num_classes": CLASSES, **options}

    def save(model, folder):
        labels = {"label_names": NAMES} if options["num_classes"] == CLASSES else None
        data = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4), "crop_pct": 0.8}
        if options.get("in_chans") == 1:
            data = {**data, "mean": (0.4,), "std": (0.2,)}
        if "convnext" in name:  # It has no size of its own.
            data = {**data, "input_size": (3, *_CONVNEXT_SIZE)}
        save_for_hf(
            model,
            str(folder),
            model_config=labels,
            data_config=data,
            safe_serialization=True,
        )

    def run(model):
        size = _CONVNEXT_SIZE if "convnext" in name else options["img_size"]
        size = [size, size] if isinstance(size, int) else size
        images, pixels = images_of(*size, options.get("in_chans", 3))
        with torch.no_grad():
            outputs = model(pixels).numpy()
        kind = "logits" if options["num_classes"] else "pooled_output"
        return {"input_images": images, f"output_{kind}": outputs}

    return Case(
        lambda: randomized(timm.create_model(name, **options), is_committed),
        "timm",
        save,
        lambda folder: timm.create_model(f"local-dir:{folder}", pretrained=True).eval(),
        run,
        is_committed,
    )


def _smp(make, size, classes, is_committed, added=None):
    def save(model, folder):
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        if added:
            # What no configuration of the library says.
            file = folder / "config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), **added}))

    def run(model):
        images, pixels = images_of(*size)
        with torch.no_grad():
            logits = model(pixels).numpy().transpose(0, 2, 3, 1)
        assert logits.shape[-1] == classes
        return {"input_images": images, "output_logits": logits}

    return Case(
        lambda: randomized(make(), is_committed),
        "segmentation_models_pytorch",
        save,
        lambda folder: smp.from_pretrained(folder).eval(),
        run,
        is_committed,
    )


def _make(name, config):
    """A model of transformers with class names."""
    labels = {"id2label": dict(enumerate(NAMES))}
    if "QuestionAnswering" in name:
        labels = {}
    kind = name.partition("For")[0].removesuffix("Model")
    options = {**labels, **config}
    return randomized(
        getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**options))
    )


def _text(name, **config):
    config = {"vocab_size": V, "max_position_embeddings": 17, **config}
    outputs = {"last_hidden_state": "sequence_output", "pooler_output": "pooled_output"}

    def run(model):
        rng = np.random.default_rng(7)
        token_ids = rng.integers(2, V, PADDING.shape).astype("int32")
        # transformers' RoBERTa finds positions by the id of the padding.
        token_ids[~PADDING] = 1
        found = run_from_first_token(model, PADDING, input_ids=token_ids)
        return {
            "input_token_ids": token_ids,
            "input_padding_mask": PADDING,
            **{f"output_{outputs.get(key, key)}": x for key, x in found.items()},
        }

    return Case(
        lambda: _make(name, config),
        "transformers",
        lambda model, folder: model.save_pretrained(folder),
        lambda folder: getattr(transformers, name).from_pretrained(folder).eval(),
        run,
    )


def _resnet(name, **config):
    config = {"embedding_size": 4, "depths": [1, 2], **config}

    def save(model, folder):
        model.save_pretrained(folder)
        processor = transformers.ConvNextImageProcessor(
            size={"shortest_edge": 96}, crop_pct=0.8, image_mean=[0.4] * 3
        )
        processor.save_pretrained(folder)

    def run(model):
        images, pixels = images_of(37, 54, config.get("num_channels", 3))
        with torch.no_grad():
            found = model(pixel_values=pixels)
        outputs = {"output_logits": found.get("logits")}
        if outputs["output_logits"] is None:
            outputs = {"output_pooled_output": found["pooler_output"][:, :, 0, 0]}
        outputs = {key: tensor.numpy() for key, tensor in outputs.items()}
        return {"input_images": images, **outputs}

    return Case(
        lambda: _make(name, config),
        "transformers",
        save,
        lambda folder: getattr(transformers, name).from_pretrained(folder).eval(),
        run,
    )


_VIT = {"img_size": (14, 21), "patch_size": 7, "embed_dim": 12, "depth": 2}
_VIT["num_heads"] = 3
_DISTILBERT = {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}
_ROBERTA = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
CASES = {
    "own_timm_vit": _timm("vit_tiny_patch16_224", **_VIT),
    "own_timm_vit_mean": _timm(
        "vit_small_patch32_224",
        global_pool="avg",
        class_token=False,
        in_chans=1,
        mlp_ratio=2.5,
        qkv_bias=False,
        **_VIT,
    ),
    "own_timm_deit3": _timm("deit3_small_patch16_224", num_classes=0, **_VIT),
    "own_timm_distilled": _timm("deit_tiny_distilled_patch16_224", **_VIT),
    "own_timm_hybrid": _timm(
        "vit_base_r50_s16_224",
        False,
        img_size=(32, 48),
        embed_dim=12,
        depth=1,
        num_heads=3,
    ),
    # The window is larger than the map of the last stage.
    "own_timm_swin": _timm(
        "swin_tiny_patch4_window7_224",
        img_size=20,
        patch_size=2,
        window_size=5,
        embed_dim=6,
        depths=(2, 1, 1),
        num_heads=(2, 1, 3),
        mlp_ratio=2.5,
    ),
    "own_timm_convnext": _timm(
        "convnext_tiny", dims=(5, 7, 6, 8), depths=(1, 2, 1, 1), patch_size=3
    ),
    "own_smp_unet": _smp(
        lambda: unet.tiny_unet("resnet18"),
        (37, 54, 3),
        CLASSES,
        True,
        {
            "decoder_channels": unet.DECODER,
            "classes": CLASSES,
            "model_args": RESNET_SIZES,
        },
    ),
    "own_smp_unet_resnet34": _smp(
        lambda: smp.Unet(
            "resnet34",
            encoder_weights=None,
            in_channels=1,
            classes=3,
            decoder_channels=(16, 8, 8, 4, 4),
        ),
        (64, 96, 1),
        3,
        False,
    ),
    "own_distilbert_encoder": _text("DistilBertModel", **_DISTILBERT),
    "own_distilbert_masked_lm": _text("DistilBertForMaskedLM", **_DISTILBERT),
    "own_distilbert_classifier": _text(
        "DistilBertForSequenceClassification", activation="relu", **_DISTILBERT
    ),
    "own_distilbert_token_classifier": _text(
        "DistilBertForTokenClassification", **_DISTILBERT
    ),
    "own_distilbert_span_qa": _text("DistilBertForQuestionAnswering", **_DISTILBERT),
    "own_roberta_segments": _text("RobertaForSequenceClassification", **_ROBERTA),
    "own_resnet_bottleneck": _resnet(
        "ResNetForImageClassification", hidden_sizes=[16, 32]
    ),
    "own_resnet_basic": _resnet(
        "ResNetModel", hidden_sizes=[4, 8], layer_type="basic", num_channels=1
    ),
}


if __name__ == "__main__":
    for name, case in CASES.items():
        if case.is_committed:
            model = case.make()
            write({name: (functools.partial(case.save, model), case.run(model))})
