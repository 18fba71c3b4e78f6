"""Data, options and training that the examples on Multi30k (Elliott 2016) share."""

import time

from options import add_training_options, new_parser

from keras_attn.data import load_multi30k
from keras_attn.decoding import Beam, Greedy
from keras_attn.metrics import bleu
from keras_attn.translator import fit_translator
from keras_attn.viz import plot_alignment, save_figure


def caption_parser(doc, run_dir, vocabulary_size, **training):
    """The options of every example on these captions.

    Args:
        doc: Docstring of the script.
        run_dir: Default of `--run-dir`.
        vocabulary_size: Default of `--vocabulary-size`.
        **training: Defaults of the training options.
    """
    parser = new_parser(doc, run_dir)
    parser.add_argument(
        "--data-dir",
        help="folder of Multi30k; if omitted, multi30k/ in $KERAS_ATTN_DATA",
    )
    parser.add_argument("--limit", type=int, help="number of pairs, for a quick test")
    parser.add_argument(
        "--vocabulary-size",
        type=int,
        default=vocabulary_size,
        help="number of subwords",
    )
    add_training_options(parser, **training)
    return parser


def load_captions(arguments):
    """Training and validation captions, each as (English, German)."""
    splits = [load_multi30k(arguments.data_dir, split) for split in ("train", "val")]
    return [[side[: arguments.limit] for side in sides] for sides in splits]


def fit_and_show(translator, train, validation, arguments, **options):
    """Trains a translator, translates validation captions, and plots an alignment."""
    run_dir = arguments.run_dir
    start = time.perf_counter()
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
    print(f"{count:,} parameters, {time.perf_counter() - start:.0f} s")

    sources, references = validation
    for strategy in (Greedy(), Beam(num_beams=4)):
        start = time.perf_counter()
        translations = translator.translate(sources, strategy=strategy)
        seconds = time.perf_counter() - start
        score = bleu(translations, references)
        print(f"{strategy}: BLEU {score:.2f}, {len(sources)} captions, {seconds:.1f} s")
    for source, reference, translation in list(
        zip(sources, references, translations, strict=True)
    )[:5]:
        print(f"\n{source}\n  person  {reference}\n  model   {translation}")

    figure = plot_alignment(*translator.align(sources[0]), title=sources[0])
    save_figure(figure, run_dir / "alignment.png")
    print(f"\nAlignment: {run_dir / 'alignment.png'}; tensorboard --logdir {run_dir}")
