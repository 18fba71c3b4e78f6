"""Training steps of a captioner and of a speech recognizer against PyTorch.

    python benchmarks/attend.py
    python benchmarks/attend.py --row "listen_attend_spell, 8 x 1000 frames" --rounds 5
    python benchmarks/attend.py --small --rounds 1    tiny models: checks that rows run

Published sizes, random weights and data, float32, SGD; see `tables.py`. "torch" is the
same network of PyTorch's layers and cells, eager: its LSTMs over the frames are one
operation each, and its decoders are a Python loop, as ours are a loop in the graph.
Captions have 20 words, transcripts 100 characters. Needs the extra `parity`.
"""

import sys
from typing import NamedTuple

import numpy as np
import tables

CAPTIONS = "caption_show_attend_tell, batch 32"
SPEECH = "listen_attend_spell, 8 x 1000 frames"
ROWS = {CAPTIONS: ("float32",), SPEECH: ("float32",)}
CONTESTANTS = dict.fromkeys(ROWS, ("ours", "torch"))
RATE = 1e-3
NUM_WORDS, NUM_CHARACTERS, MELS = 10_000, 43, 40


class Sizes(NamedTuple):
    """Widths of both networks, and the shapes of their data."""

    images: int
    grid: int
    words: int
    embedding: int
    state: int
    features: int
    recordings: int
    frames: int
    characters: int
    listener: int
    units: int
    width: int


PUBLISHED = Sizes(
    images=32,
    grid=14,
    words=20,
    embedding=512,
    state=1800,
    features=512,
    recordings=8,
    frames=1000,
    characters=100,
    listener=256,
    units=512,
    width=256,
)
SMALL = Sizes(
    images=2,
    grid=2,
    words=3,
    embedding=4,
    state=6,
    features=5,
    recordings=2,
    frames=16,
    characters=3,
    listener=2,
    units=4,
    width=3,
)


def needs(row, contestant):
    """The packages that a contestant imports."""
    return ("torch",) if contestant == "torch" else ()


def data_of(row, sizes):
    """Inputs by name, and labels."""
    rng = np.random.default_rng(0)
    if row == CAPTIONS:
        shape = (sizes.images, sizes.grid, sizes.grid, sizes.features)
        length, vocabulary = sizes.words, NUM_WORDS
    else:
        shape = (sizes.recordings, sizes.frames, MELS)
        length, vocabulary = sizes.characters, NUM_CHARACTERS
    inputs = {
        "features": rng.normal(size=shape).astype("float32"),
        "decoder_token_ids": rng.integers(0, vocabulary, (shape[0], length), "int32"),
    }
    if row == SPEECH:
        inputs["padding_mask"] = np.ones(shape[:2], bool)
    return inputs, rng.integers(0, vocabulary, (shape[0], length), "int32")


def ours(row, sizes):
    """A training step of our model."""
    import keras

    from keras_attn import models

    widths = {
        "embedding_dim": sizes.embedding,
        "hidden_dim": sizes.state,
        "attention_dim": sizes.features,
        "initial_dim": sizes.features,
        "grid_size": sizes.grid,
        "feature_dim": sizes.features,
    }
    if row == SPEECH:
        widths = {
            "listener_dim": sizes.listener,
            "embedding_dim": sizes.width,
            "hidden_dim": sizes.units,
            "attention_dim": sizes.units,
            "readout_dim": sizes.units,
        }
    model = models.create(row.split(",")[0], **widths)
    inputs, labels = data_of(row, sizes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return lambda: model.train_on_batch(inputs, labels)


def torch_model(row, dtype, sizes):
    """A training step of the same network in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    inputs, labels = data_of(row, sizes)
    features = torch.from_numpy(inputs["features"])
    tokens = torch.from_numpy(inputs["decoder_token_ids"]).long()
    labels = torch.from_numpy(labels).long()
    model = (captioner if row == CAPTIONS else recognizer)(sizes).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step():
        optimizer.zero_grad()
        logits, penalty = model(features, tokens)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.ravel())
        (losses + penalty).backward()
        optimizer.step()

    return step


def captioner(sizes):
    """Show, attend and tell, of cells."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    embedding, state, features = sizes.embedding, sizes.state, sizes.features

    class Captioner(nn.Module):
        def __init__(self):
            super().__init__()
            self.initial = nn.Linear(features, features)
            self.states = nn.ModuleList([nn.Linear(features, state) for _ in "hc"])
            self.words = nn.Embedding(NUM_WORDS, embedding)
            self.key = nn.Linear(features, features)
            self.query = nn.Linear(state, features, bias=False)
            self.score = nn.Linear(features, 1, bias=False)
            self.gate = nn.Linear(state, 1)
            self.cell = nn.LSTMCell(embedding + features, state)
            self.of_state = nn.Linear(state, embedding)
            self.of_context = nn.Linear(features, embedding, bias=False)
            self.logits = nn.Linear(embedding, NUM_WORDS)
            self.dropout = nn.Dropout(0.5)

        def forward(self, features, tokens):
            places = features.flatten(1, 2)
            first = self.dropout(self.initial(places.mean(1)).relu())
            h, c = (layer(first).tanh() for layer in self.states)
            words, keys = self.words(tokens), self.key(places)
            states, contexts, seen = [], [], []
            for word in words.unbind(1):
                scores = self.score((keys + self.query(h)[:, None]).tanh())
                weights = scores.softmax(1)
                context = self.gate(h).sigmoid() * (weights * places).sum(1)
                h, c = self.cell(torch.cat([word, context], 1), (h, c))
                states.append(h)
                contexts.append(context)
                seen.append(weights[..., 0])
            states, contexts = torch.stack(states, 1), torch.stack(contexts, 1)
            hidden = self.of_state(self.dropout(states)) + self.of_context(contexts)
            logits = self.logits(self.dropout(words + hidden))
            coverage = ((1 - torch.stack(seen, 1).sum(1)) ** 2).sum(1).mean()
            return logits, coverage / tokens.shape[1]

    return Captioner()


def recognizer(sizes):
    """Listen, attend and spell, of PyTorch's LSTMs and cells."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    listener, units, width = sizes.listener, sizes.units, sizes.width

    class Recognizer(nn.Module):
        def __init__(self):
            super().__init__()
            inputs = (MELS, *3 * (4 * listener,))
            self.listener = nn.ModuleList(
                nn.LSTM(size, listener, batch_first=True, bidirectional=True)
                for size in inputs
            )
            self.characters = nn.Embedding(NUM_CHARACTERS, width)
            self.cells = nn.ModuleList(
                [nn.LSTMCell(width + 2 * listener, units), nn.LSTMCell(units, units)]
            )
            self.query = nn.Linear(units, units)
            self.key = nn.Linear(2 * listener, units)
            self.hidden = nn.Linear(units + 2 * listener, units)
            self.logits = nn.Linear(units, NUM_CHARACTERS)

        def forward(self, features, tokens):
            memory = self.listener[0](features)[0]
            for lstm in self.listener[1:]:
                pairs = memory.unflatten(1, (-1, 2)).flatten(2)
                memory = lstm(pairs)[0]
            keys = self.key(memory).tanh()
            zeros = features.new_zeros(len(features), units)
            states = [(zeros, zeros), (zeros, zeros)]
            context = memory.new_zeros(len(memory), memory.shape[-1])
            outputs = []
            for step, character in enumerate(self.characters(tokens).unbind(1)):
                if step:  # As in ours, one input in ten is sampled from its output.
                    drawn = torch.distributions.Categorical(
                        logits=self.read(outputs[-1]).detach()
                    ).sample()
                    is_drawn = torch.rand(len(drawn), 1) < 0.1
                    sampled = self.characters(drawn)
                    character = torch.where(is_drawn, sampled, character)
                hidden = torch.cat([character, context], 1)
                for index, cell in enumerate(self.cells):
                    states[index] = cell(hidden, states[index])
                    hidden = states[index][0]
                query = self.query(hidden).tanh()
                weights = (keys @ query[..., None]).softmax(1)
                context = (weights * memory).sum(1)
                outputs.append(torch.cat([hidden, context], 1))
            return self.read(torch.stack(outputs, 1)), 0.0

        def read(self, outputs):
            return self.logits(self.hidden(outputs).tanh())

    return Recognizer()


def main():
    """Prints a row of the table for each training step."""
    arguments = tables.new_parser(__doc__, ROWS).parse_args()
    tables.run(sys.modules[__name__], arguments)


if __name__ == "__main__":
    main()
