"""What the examples on Multi30k (Elliott et al. 2016) have in common."""

import argparse
import time
from pathlib import Path

from keras_attn.data import load_multi30k
from keras_attn.decoding import Beam, Greedy
from keras_attn.training import bleu, fit_translator
from keras_attn.viz import plot_alignment, save_figure


def new_parser(doc, run_dir):
    """The options of every example on these captions.

    Args:
        doc: The script's docstring, whose first line says what it does.
        run_dir: Default of the option of that name.
    """
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data-dir",
        help="folder of Multi30k; without it, multi30k/ in $KERAS_ATTN_DATA",
    )
    parser.add_argument("--run-dir", default=run_dir, help="where it all goes")
    parser.add_argument("--limit", type=int, help="only so many pairs, for a quick try")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    return parser


def load_captions(arguments):
    """Training and validation captions: English, German."""
    splits = [load_multi30k(arguments.data_dir, split) for split in ("train", "val")]
    return [[side[: arguments.limit] for side in sides] for sides in splits]


def fit_and_show(translator, train, validation, arguments, **options):
    """Fits a translator, translates the validation captions, draws an alignment."""
    run_dir = Path(arguments.run_dir)
    began = time.perf_counter()
    fit_translator(
        translator,
        train,
        validation,
        run_dir,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        score=bleu,
        score_name="bleu",
        seed=arguments.seed,
        **options,
    )
    count = translator.model.count_params()
    print(f"{count:,} parameters, {time.perf_counter() - began:.0f} s")

    sources, references = validation
    for strategy in (Greedy(), Beam(num_beams=4)):
        began = time.perf_counter()
        translations = translator.translate(sources, strategy=strategy)
        seconds = time.perf_counter() - began
        score = bleu(translations, references)
        print(f"{strategy}: BLEU {score:.2f}, {len(sources)} captions, {seconds:.1f} s")
    for source, reference, translation in list(
        zip(sources, references, translations, strict=True)
    )[:5]:
        print(f"\n{source}\n  person  {reference}\n  model   {translation}")

    figure = plot_alignment(*translator.align(sources[0]), title=sources[0])
    save_figure(figure, run_dir / "alignment.png")
    print(f"\nAlignment: {run_dir / 'alignment.png'}; tensorboard --logdir {run_dir}")
