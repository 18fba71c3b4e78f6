"""Builds the wheel, looks inside, and uses it from outside the checkout.

A wheel that installed a top-level `models` or `export` would shadow half of other
people's projects; one without them would still pass every test in the checkout.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SMOKE = """
import keras_attn
from keras_attn import decoding, models

assert keras_attn.__file__.startswith({site!r}), keras_attn.__file__
assert models.__file__.startswith({site!r}), models.__file__
model = models.create(
    "rnnsearch_50", source_vocabulary_size=11, target_vocabulary_size=13,
    embedding_dim=5, hidden_dim=7, attention_dim=3, maxout_dim=2,
)
inputs = {{"token_ids": [[4, 5, 6]]}}
answer = decoding.generate(model, inputs, 3, start_token_id=1)
assert answer.token_ids.shape == (1, 3)
assert models.count_parameters("seq2seq_sutskever") == 384_112_000
from keras_attn.export import export, load_runner
export(model, "pair")
assert set(load_runner("pair").signatures) >= {{"prefill", "step"}}
print("1 passed, 0 failed")
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        tops = {name.split("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"keras_attn"}
        for needed in ("models/rnnsearch.py", "export/runner.py", "py.typed"):
            assert f"keras_attn/{needed}" in names, f"{needed} is not in the wheel"

        site, elsewhere = folder / "site", folder / "elsewhere"
        elsewhere.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        run(*pip, "--target", site, wheel)
        run(
            *(sys.executable, "-c", SMOKE.format(site=str(site))),
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(site)},
        )


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


if __name__ == "__main__":
    main()
