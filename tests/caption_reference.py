"""Show and Tell, and Show, Attend and Tell, from the papers' equations in NumPy.

One image, one word and one place at a time, in float64. Of the models only the weights
are read, by the names of their layers.

Legend: P places, C channels, T words, V vocabulary, U units.
"""

import itertools
from typing import Any

import numpy as np
from attention_reference import lstm_step, sigmoid, softmax


def weights_by_layer(model) -> dict[str, Any]:
    """The weights of every layer, in the order in which the layer made them."""
    return {
        layer.name: [np.asarray(w, "float64") for w in layer.get_weights()]
        for layer in model.layers
    }


def show_and_tell(weights, grid, words):
    """Logits (T, V) of one image (rows, columns, C)."""
    mean = np.mean([place for row in grid.astype("float64") for place in row], axis=0)
    kernel, bias = weights["image_embedding"]
    image = mean @ kernel + bias
    embeddings, lstm = weights["word_embedding"][0], weights["decoder"]
    units = len(lstm[1])
    if "initial_state" in weights:  # The form of lectures.
        (hk, hb), (mk, mb) = weights["initial_state"], weights["initial_cell"]
        h, m = np.tanh(mean @ hk + hb), np.tanh(mean @ mk + mb)
        rows = [np.concatenate([embeddings[word], image]) for word in words]
    else:
        h, m = lstm_step(image, np.zeros(units), np.zeros(units), *lstm)
        rows = [embeddings[word] for word in words]
    kernel, bias = weights["logits"]
    logits = []
    for row in rows:
        h, m = lstm_step(row, h, m, *lstm)
        logits.append(h @ kernel + bias)
    return np.array(logits)


def decoder_weights(model) -> dict[str, Any]:
    """The weights of the decoder that attends, by their paths inside it."""
    return {
        weight.path.removeprefix("decoder/"): np.asarray(weight, "float64")
        for weight in model.get_layer("decoder").weights
    }


class ShowAttendTell:
    """The equations of Xu et al. 2015, section 3.1.2.

    Args:
        model: A model of `build_caption_show_attend_tell`.
    """

    def __init__(self, model):
        self.weights = weights_by_layer(model)
        self.decoder = decoder_weights(model)

    def tell(self, grid, words, choose=lambda step, alpha: alpha):
        """One caption.

        Args:
            grid: (rows, columns, C).
            words: (T,), the first one starts the caption.
            choose: From the step and α (P,) to the weights of the places.

        Returns:
            Logits (T, V), and α (T, P).
        """
        places = [place for row in grid.astype("float64") for place in row]
        (ik, ib), w = self.weights["initial_hidden"], self.weights
        hidden = np.maximum(np.mean(places, axis=0) @ ik + ib, 0)
        h = np.tanh(hidden @ w["initial_state"][0] + w["initial_state"][1])
        m = np.tanh(hidden @ w["initial_cell"][0] + w["initial_cell"][1])
        logits, alphas = [], []
        for step, word in enumerate(words):
            alpha = softmax(np.array([self._score(h, place) for place in places]))
            taken = choose(step, alpha)
            gate = sigmoid(h @ self.decoder["gate_kernel"] + self.decoder["gate_bias"])
            z = gate * sum(t * place for t, place in zip(taken, places, strict=True))
            y = w["word_embedding"][0][word]
            lstm = [
                self.decoder[f"decoder_cell/{name}"]
                for name in ("kernel", "recurrent_kernel", "bias")
            ]
            h, m = lstm_step(np.concatenate([y, z]), h, m, *lstm)
            (hk, hb), (zk,) = w["hidden_readout"], w["context_readout"]
            readout = y + h @ hk + hb + z @ zk
            logits.append(readout @ w["logits"][0] + w["logits"][1])
            alphas.append(alpha)
        return np.array(logits), np.array(alphas)

    def _score(self, h, place):
        d = self.decoder
        inner = h @ d["attention/query/kernel"] + place @ d["attention/key/kernel"]
        inner = np.tanh(inner + d["attention/key/bias"])
        return (inner @ d["attention/score_vector"])[0]

    def expected_log_likelihood(self, grid, words, labels):
        """`Σ_s p(s) log p(y|s)`, over all sequences s of locations."""
        count, total = grid.shape[0] * grid.shape[1], 0.0
        for sequence in itertools.product(range(count), repeat=len(words)):

            def choose(step, alpha, sequence=sequence):
                return np.eye(len(alpha))[sequence[step]]

            logits, alphas = self.tell(grid, words, choose)
            probability = np.prod([a[s] for a, s in zip(alphas, sequence, strict=True)])
            total += probability * log_likelihood(logits, labels).sum()
        return total


def log_likelihood(logits, labels):
    """The log p(y_t) of every word, (T,)."""
    rows = zip(logits, labels, strict=True)
    return np.array([np.log(softmax(row)[label]) for row, label in rows])


def coverage(alphas):
    """`Σ_i (1 - Σ_t α_ti)²`, from α (T, P)."""
    return sum((1 - sum(column)) ** 2 for column in alphas.T)
