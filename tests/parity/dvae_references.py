"""DALL·E's discrete VAE in its authors' package, at a tiny size.

`python tests/parity/dvae_references.py` writes the folder `checkpoints/dall_e_dvae`. It
needs PyTorch and the package, which nothing else does, from a folder of its own:
`pip install --no-deps --target FOLDER dall-e`, and FOLDER on the path.
"""

import json
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

FOLDER = Path(__file__).parent / "checkpoints" / "dall_e_dvae"
# An image of 3 × 2 codes.
SIZE = (24, 16)
SIZES = {"n_hid": 4, "n_blk_per_group": 2, "vocab_size": 29}
CODE_DIM = 7


def write():
    """Writes the folder, with the outputs of the package."""
    import attr
    from dall_e.decoder import Decoder  # pyright: ignore[reportMissingImports]
    from dall_e.encoder import Encoder  # pyright: ignore[reportMissingImports]
    from dall_e.utils import (  # pyright: ignore[reportMissingImports]
        map_pixels,
        unmap_pixels,
    )
    from safetensors.torch import save_file

    attr.validators.set_disabled(True)  # They want 64 channels and 512 codes.
    torch.manual_seed(0)
    encoder, decoder = Encoder(**SIZES), Decoder(n_init=CODE_DIM, **SIZES)
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            if parameter.ndim == 1:
                parameter.normal_(std=0.3)
            else:
                parameter.mul_(1.5)
        images = torch.rand(2, 3, *SIZE)
        logits = encoder(map_pixels(images))
        codes = logits.argmax(1)
        one_hot = torch.nn.functional.one_hot(codes, SIZES["vocab_size"])
        statistics = decoder(one_hot.permute(0, 3, 1, 2).float())
        pixels = unmap_pixels(torch.sigmoid(statistics[:, :3]))
    FOLDER.mkdir(exist_ok=True)
    tensors = {f"encoder.{key}": x for key, x in encoder.state_dict().items()}
    tensors |= {f"decoder.{key}": x for key, x in decoder.state_dict().items()}
    save_file(tensors, FOLDER / "model.safetensors")
    config = {"library": "dall_e", "image_size": SIZE, "n_init": CODE_DIM, **SIZES}
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    arrays = {"input_images": images, "output_logits": logits}
    arrays |= {"output_statistics": statistics, "output_reconstruction": pixels}
    arrays = {key: x.permute(0, 2, 3, 1).numpy() for key, x in arrays.items()}
    np.savez_compressed(FOLDER / "expected.npz", output_codes=codes, **arrays)


if __name__ == "__main__":
    write()
