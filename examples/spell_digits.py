"""Listen, attend and spell (Chan et al. 2016) spells sequences of spoken digits.

    python examples/spell_digits.py

Strings recordings of digits together, 3 to 6 of different speakers with short pauses,
and learns to spell them, "seven two nine". The first epochs have 1 to 3 digits, from
which attention is learned faster. Needs the Free Spoken Digit Dataset: a folder of
`{digit}_{speaker}_{index}.wav`, or an archive of it; and `pip install ".[audio]"` if
the recordings have another rate than 8 kHz.

Each of the three runs has a seed of its own and never hears one of the six speakers.
It is tested on sequences of recordings of known speakers, those with indices 0 to 9,
which are not trained on (the data set itself holds out 0 to 4), and on sequences of all
recordings of the new speaker.

The texts of a beam of 8 are ranked as in section 3.4 of the paper: by their
log-probability per character ("beam"), and with λ times their log-probability by a
language model ("rescored"), here a GPT over characters that has learned from sequences
of digits without sound. λ is the best of a few on other sequences of the recordings of
known speakers that are tested.

Results with one thread of an AMD EPYC (AVX-512, no AMX), beside other work: 480 steps,
20 minutes of CPU time for all three runs. Each run is tested on 200 sequences of known
and 200 of the new speaker; means of the three, smallest and largest:

                               characters wrong       sequences right
    known speakers, greedy     2.2% (1.8 to 2.4)    89.0% (88.0 to 90.5)
    known speakers, beam       2.2% (1.8 to 2.5)    88.8% (87.5 to 90.5)
    known speakers, rescored   2.2% (1.9 to 2.4)    89.2% (88.5 to 90.5)
    new speaker, greedy       21.3% (15.9 to 31.9)  27.8% (12.0 to 37.0)
    new speaker, beam         21.0% (15.5 to 31.6)  28.3% (12.0 to 38.0)
    new speaker, rescored     21.3% (15.7 to 31.8)  29.0% (12.0 to 39.5)

For a speaker that it has not heard it makes ten times as many errors: 32% without
George, 16% without Jackson or Lucas. Neither the beam nor the language model makes a
difference: digits follow each other at random, so all that a language model can know is
how a digit is spelled, which the speller has learned as well. The best λ are small,
0.003 to 0.03.
"""

import tarfile
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import models, viz
from keras_attn.data import CharacterTokenizer, pad_waveforms, read_waveforms
from keras_attn.decoding import (
    Beam,
    Greedy,
    generate,
    language_model_scorer,
    rescore,
)
from keras_attn.layers import LogMelSpectrogram
from keras_attn.training import BackupAndResume, CosineWarmup

WORDS = "zero one two three four five six seven eight nine".split()
RATE = 8000
TEST_INDICES = range(10)
LENGTHS, EASY_LENGTHS = (3, 6), (1, 3)  # Digits per sequence.
PAUSE = 0.15  # Maximum silence before, between and after digits, in seconds.
SHOWN = 3
NUM_BEAMS = 8
WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1)  # λ of the language model; 0 leaves it out.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/digits")
    content = "folder with recordings, or an archive *.tar.gz of them"
    script_arguments.add_data_dir(parser, "fsdd", content)
    parser.add_argument("--steps", type=int, default=80, help="batches per epoch")
    parser.add_argument("--tested", type=int, default=200, help="sequences per test")
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs; each holds out a different speaker"
    )
    parser.add_argument(
        "--easy-epochs", type=int, default=2, help="first epochs, with 1 to 3 digits"
    )
    parser.add_argument("--listener-dim", type=int, default=96, help="paper: 256")
    parser.add_argument("--hidden-dim", type=int, default=128, help="paper: 512")
    parser.add_argument(
        "--sequences", type=int, default=4000, help="texts for the language model"
    )
    parser.add_argument("--tuned", type=int, default=100, help="sequences to choose λ")
    script_arguments.add_training_options(
        parser, epochs=6, batch_size=32, learning_rate=2e-3
    )
    tiny = {"epochs": 2, "easy_epochs": 1, "steps": 2, "tested": 3}
    tiny |= {"batch_size": 3, "listener_dim": 4, "hidden_dim": 5, "seeds": 1}
    tiny |= {"sequences": 6, "tuned": 3}
    return script_arguments.parse(parser, **tiny)


def load_recordings(arguments):
    """Waveforms, their digits and indices, by speaker."""
    folder = arguments.data_dir
    for archive in sorted(folder.glob("*.tar.gz")):
        folder = arguments.run_dir / "recordings"
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    paths = sorted(folder.rglob("?_*_*.wav"))
    if not paths:
        raise SystemExit(
            f"{arguments.data_dir} must have WAV files like 7_george_12.wav, or an "
            "archive *.tar.gz of them. Pass --data-dir, or set KERAS_ATTN_DATA."
        )
    found = read_waveforms(paths, RATE, on_error="skip")
    speakers = {}
    for path, waveform in zip(found.paths, found.waveforms, strict=True):
        digit, speaker, index = path.stem.split("_")
        speakers.setdefault(speaker, []).append((waveform, int(digit), int(index)))
    return dict(sorted(speakers.items()))


def split_recordings(speakers, held_out):
    """Recordings for training, and for tests with known and with new speakers.

    Args:
        speakers: From `load_recordings`.
        held_out: Name of the speaker who is not heard in training.
    """
    known = [each for name, x in speakers.items() if name != held_out for each in x]
    train = [each for each in known if each[2] not in TEST_INDICES]
    tests = {
        "known speakers": [each for each in known if each[2] in TEST_INDICES],
        "new speaker": speakers[held_out],
    }
    if not (train and all(tests.values())):
        raise SystemExit(
            "The recordings must be of at least two speakers, each with indices up to "
            f"{TEST_INDICES[-1]}, for testing, and above, for training."
        )
    return train, tests


def string_together(recordings, shortest, longest, rng):
    """One waveform of several digits, and its text."""
    chosen = rng.integers(len(recordings), size=rng.integers(shortest, longest + 1))

    def pause():
        # A little noise: silence would be too easy to recognize.
        return rng.normal(0, 1e-3, rng.integers(1, int(PAUSE * RATE)))

    parts = [pause()]
    for index in chosen:
        parts += [recordings[index][0] * rng.uniform(0.5, 1.5), pause()]
    words = " ".join(WORDS[recordings[index][1]] for index in chosen)
    return np.concatenate(parts).astype("float32"), words


def sequence_dataset(recordings, tokenizer, front_end, arguments, seed, epoch):
    """Batches of new sequences in each epoch, whose number is in a variable."""

    def batches():
        number = int(epoch.numpy())
        lengths = EASY_LENGTHS if number < arguments.easy_epochs else LENGTHS
        for index in range(arguments.steps):
            rng = np.random.default_rng([seed, number, index])
            made = [
                string_together(recordings, *lengths, rng)
                for _ in range(arguments.batch_size)
            ]
            yield batch_of(made, tokenizer, front_end)

    inputs = {
        "features": tf.TensorSpec((None, None, front_end.num_mels), "float32"),
        "padding_mask": tf.TensorSpec((None, None), "int32"),
        "decoder_token_ids": tf.TensorSpec((None, None), "int32"),
    }
    labels = tf.TensorSpec((None, None), "int32")
    weights = tf.TensorSpec((None, None), "float32")
    signature = (inputs, labels, weights)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    count = tf.data.experimental.assert_cardinality(arguments.steps)
    return dataset.apply(count).prefetch(2)


def batch_of(made, tokenizer, front_end):
    """Inputs, labels and weights of waveforms and their texts."""
    waveforms, texts = zip(*made, strict=True)
    # Few lengths, and few frames of padding.
    frames = front_end(*pad_waveforms(waveforms, multiple_of=RATE // 4).values())
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    rows = [[start, *tokenizer.encode(text), end] for text in texts]
    tokens = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    inputs = {
        "features": keras.ops.convert_to_numpy(frames["features"]),
        "padding_mask": keras.ops.convert_to_numpy(frames["padding_mask"]).astype(
            "int32"
        ),
        "decoder_token_ids": tokens[:, :-1],
    }
    labels = tokens[:, 1:]
    return inputs, labels, (labels != tokenizer.pad_token_id).astype("float32")


def edit_distance(one, other):
    """The minimum number of edits that turn one text into the other."""
    row = list(range(len(other) + 1))
    for index, character in enumerate(one, 1):
        last, row[0] = row[0], index
        for place, wanted in enumerate(other, 1):
            replaced = last + (character != wanted)
            last = row[place]
            row[place] = min(replaced, last + 1, row[place - 1] + 1)
    return row[-1]


def listen(model, tested, tokenizer, num_beams=1):
    """The texts that a speller finds for each waveform, and their log-probabilities."""
    waveforms, texts = zip(*tested, strict=True)
    longest = max(map(len, texts)) + 10
    heard, log_probs = [], []
    for start in range(0, len(tested), 50):
        # The decoder reads waveforms, as an exported file does.
        inputs = pad_waveforms(waveforms[start : start + 50])
        found = generate(
            model,
            inputs,
            longest,
            strategy=Greedy() if num_beams == 1 else Beam(num_beams, 0.0),
            num_results=num_beams,
            start_token_id=tokenizer.start_token_id,
            end_token_id=tokenizer.end_token_id,
        )
        heard += [tokenizer.decode_batch(row) for row in found.token_ids]
        log_probs.append(found.scores)
    return heard, np.concatenate(log_probs)


def measure(ranked, tested):
    """The character error rate of the best texts, and the share without errors."""
    pairs = [(row[0].text, text) for row, (_, text) in zip(ranked, tested, strict=True)]
    errors = sum(edit_distance(*pair) for pair in pairs)
    right = np.mean([one == other for one, other in pairs])
    return errors / sum(len(text) for _, text in pairs), right


def train_language_model(tokenizer, arguments):
    """The scorer log P_LM of a GPT over the characters of sequences of digits."""
    keras.utils.set_random_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    shortest, longest = LENGTHS
    texts = [
        " ".join(rng.choice(WORDS, rng.integers(shortest, longest + 1)))
        for _ in range(arguments.sequences)
    ]
    tokens = tokenizer.encode_batch(texts, add_start=True, add_end=True)
    is_real = tokens != tokenizer.pad_token_id
    model = models.build_gpt(
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=64,
        num_layers=2,
        hidden_dim=64,
        num_heads=4,
        mlp_dim=256,
        dropout=0.0,
    )
    model.compile(
        keras.optimizers.Adam(arguments.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    began = time.process_time()
    model.fit(
        {"token_ids": tokens[:, :-1], "padding_mask": is_real[:, :-1]},
        tokens[:, 1:],
        sample_weight=is_real[:, 1:].astype("float32"),
        batch_size=64,
        epochs=1 if arguments.smoke else 10,
        verbose=2,
    )
    print(f"language model: {time.process_time() - began:.0f} seconds of CPU time")
    return language_model_scorer(model, tokenizer, batch_size=64)


def choose_weight(heard, tuned, scorer):
    """λ with the fewest wrong characters."""
    rates = [
        measure(rescore(*heard, scorer=scorer, weight=weight), tuned)[0]
        for weight in WEIGHTS
    ]
    return WEIGHTS[int(np.argmin(rates))]


def train_speller(train, shown, tokenizer, front_end, arguments, seed, folder):
    """Trains a speller, or resumes, and saves the one that reads waveforms.

    Args:
        train: Recordings.
        shown: Sequences whose attention is drawn.
        tokenizer: The tokenizer of the letters.
        front_end: The layer that computes the features.
        arguments: Command-line arguments.
        seed: Seed of the weights and the sequences.
        folder: Folder for all results.

    Returns:
        The speller that reads waveforms.
    """
    keras.utils.set_random_seed(seed)
    model = models.create(
        "listen_attend_spell",
        vocabulary_size=tokenizer.vocabulary_size,
        embedding_dim=32,
        attention_dim=arguments.hidden_dim,
        readout_dim=arguments.hidden_dim,
        num_layers=1 if arguments.smoke else 2,
        **script_arguments.selected(arguments, "listener_dim", "hidden_dim"),
    )
    print(f"{model.count_params():,} parameters", flush=True)
    steps = arguments.epochs * arguments.steps
    rate = CosineWarmup(arguments.learning_rate, steps // 20 + 1, steps + 1)
    model.compile(
        keras.optimizers.Adam(rate, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    inputs, _, _ = batch_of(shown, tokenizer, front_end)
    labels = [[*text, "<end>"] for _, text in shown]
    logs = str(folder / "logs")
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    began = time.process_time()
    model.fit(
        sequence_dataset(train, tokenizer, front_end, arguments, seed, backup.epoch),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[
            keras.callbacks.TensorBoard(logs, write_graph=False),
            viz.callbacks.SpeechAttentionMaps(logs, inputs, labels),
            backup,
        ],
    )
    print(f"trained in {time.process_time() - began:.0f} seconds of CPU time")
    (scores,) = viz.capture_attention(model, inputs).values()
    frames = inputs["features"][0][: inputs["padding_mask"][0].sum()]
    figure = viz.plot_speech_attention(scores[0], frames, labels[0])
    viz.save_figure(figure, folder / "attention.png")
    heard = model.with_front_end(front_end)
    heard.save(folder / "model.keras")
    return heard


def main():
    """Trains a speller with each seed, and scores it on known and on new speakers."""
    arguments = parse_arguments()
    speakers = load_recordings(arguments)
    tokenizer = CharacterTokenizer.train([" ".join(WORDS)])
    front_end = LogMelSpectrogram(RATE, 40, normalization="utterance")
    scorer = train_language_model(tokenizer, arguments)
    results = {}
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        held_out = list(speakers)[seed % len(speakers)]
        train, tests = split_recordings(speakers, held_out)
        counts = ", ".join(f"{len(x)} of {name}" for name, x in tests.items())
        print(f"\nwithout {held_out}: {len(train)} recordings for training, {counts}")
        rng = np.random.default_rng(seed)
        tested = {
            name: [string_together(x, *LENGTHS, rng) for _ in range(arguments.tested)]
            for name, x in tests.items()
        }
        heard = train_speller(
            train,
            tested["new speaker"][:SHOWN],
            tokenizer,
            front_end,
            arguments,
            seed,
            arguments.run_dir / f"without_{held_out}",
        )
        tuned = [
            string_together(tests["known speakers"], *LENGTHS, rng)
            for _ in range(arguments.tuned)
        ]
        weight = choose_weight(
            listen(heard, tuned, tokenizer, NUM_BEAMS), tuned, scorer
        )
        print(f"weight of the language model: {weight}")
        for name, those in tested.items():
            beam = listen(heard, those, tokenizer, NUM_BEAMS)
            ranked = {
                "greedy": rescore(*listen(heard, those, tokenizer)),
                "beam": rescore(*beam),
                "rescored": rescore(*beam, scorer=scorer, weight=weight),
            }
            for system, rows in ranked.items():
                label, figures = f"{name}, {system}", measure(rows, those)
                results.setdefault(label, []).append(figures)
                print_scores(label, [figures])
            shown = zip(ranked["rescored"][:SHOWN], those, strict=False)
            for row, (_, truth) in shown:
                print(f"  {truth}  ->  {row[0].text}")
    print(f"\nall {arguments.seeds} runs: mean (smallest to largest)")
    for label, runs in results.items():
        print_scores(label, runs)
    folder = arguments.run_dir
    print(f"\nAttention: {folder}/without_*/; tensorboard --logdir {folder}")


def print_scores(label, runs):
    """Prints character error rates and the shares of sequences without errors."""
    told = []
    for values in zip(*runs, strict=True):
        low, mean, high = (100 * f(values) for f in (min, np.mean, max))
        told.append(f"{mean:.1f} % ({low:.1f} to {high:.1f})")
    print(
        f"{label:<24} character error rate {told[0]}, sequences right {told[1]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
