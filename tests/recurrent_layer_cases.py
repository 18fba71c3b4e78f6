"""Recurrent layers and the front end of speech, each in several configurations."""

import keras
from layer_contract import (
    CACHE,
    HEADS,
    KEY_DIM,
    UNITS,
    VALUE_DIM,
    B,
    Case,
    D,
    E,
    F,
    S,
    T,
)

from keras_attn import layers


def _rnn(cell, attention, **options):
    return lambda: layers.AttentionRNN(cell(UNITS), attention(), **options)


def _hard_rnn(cell, attention, **options):
    return lambda: layers.HardAttentionRNN(cell(UNITS), attention(), **options)


def _speller(**options):
    return lambda: layers.AttentionSpeller(
        F,
        embedding_dim=D,
        hidden_dim=UNITS,
        attention_dim=KEY_DIM,
        readout_dim=VALUE_DIM,
        **options,
    )


def _spectrogram(**options):
    # Windows of 3 samples every 2 samples.
    return lambda: layers.LogMelSpectrogram(
        1000,
        HEADS,
        window_seconds=0.003,
        hop_seconds=0.002,
        **{"fft_length": 32, **options},
    )


QUERY, VALUE = (B, T, D), (B, S, E)
TOKENS = {"inputs": QUERY}
PADDED = {"inputs": QUERY, "padding_mask": (B, T)}
SCORES = {"return_attention_scores": True}
RECURRENT = {**TOKENS, "memory": VALUE, "initial_state": [(B, UNITS), (B, UNITS)]}
DOT = layers.DotProductAttention
ADDITIVE = layers.AdditiveAttention

CASES = {
    "FrameAttentionRNN": {
        "lstm_additive": Case(
            lambda: layers.FrameAttentionRNN(
                keras.layers.LSTMCell(UNITS), ADDITIVE(UNITS + 2, use_bias=True)
            ),
            {"memory": (B, T, S, E), "initial_state": [(B, UNITS), (B, UNITS)]},
            SCORES,
            causal_over="memory",
        ),
        "gru_dot": Case(
            lambda: layers.FrameAttentionRNN(
                keras.layers.GRUCell(UNITS), DOT("general"), unroll=True
            ),
            {"memory": (B, T, S, E)},
            causal_over="memory",
        ),
    },
    "PerFrame": {
        "conv": Case(
            lambda: layers.PerFrame(keras.layers.Conv2D(UNITS, 2)),
            {"inputs": (B, T, S, S, D)},
        )
    },
    "AttentionRNN": {
        "gru_additive": Case(
            _rnn(keras.layers.GRUCell, lambda: ADDITIVE(UNITS + 2)),
            {
                "inputs": QUERY,
                "memory": VALUE,
                "initial_state": (B, UNITS),
                "memory_padding_mask": (B, S),
            },
            SCORES,
            causal_over="inputs",
        ),
        "lstm_general": Case(
            _rnn(keras.layers.LSTMCell, lambda: DOT("general"), unroll=True),
            RECURRENT,
            causal_over="inputs",
        ),
        "lstm_gate": Case(
            _rnn(
                keras.layers.LSTMCell,
                lambda: ADDITIVE(UNITS + 2, use_bias=True),
                gate=True,
                kernel_initializer="he_normal",
            ),
            {**RECURRENT, "memory_padding_mask": (B, S)},
            SCORES,
            causal_over="inputs",
        ),
        "simple_dot_one_step": Case(
            _rnn(keras.layers.SimpleRNNCell, lambda: DOT("scaled_dot")),
            {"inputs": (B, 1, D), "memory": (B, S, UNITS), "initial_state": (B, UNITS)},
            SCORES,
        ),
    },
    "HardAttentionRNN": {
        "gru": Case(
            _hard_rnn(
                keras.layers.GRUCell,
                lambda: ADDITIVE(UNITS + 2),
                mean_rate=0.25,
                seed=3,
            ),
            {"inputs": QUERY, "memory": VALUE, "initial_state": (B, UNITS)},
            causal_over="inputs",
        ),
        "lstm_gate": Case(
            _hard_rnn(
                keras.layers.LSTMCell,
                lambda: ADDITIVE(UNITS + 2, use_bias=True),
                gate=True,
                unroll=True,
                inference="most_probable",
                kernel_initializer="he_normal",
            ),
            {
                "inputs": QUERY,
                "memory": VALUE,
                "initial_state": [(B, UNITS), (B, UNITS)],
                "memory_padding_mask": (B, S),
            },
            SCORES,
            causal_over="inputs",
            ranks=True,
        ),
    },
    "AttentionObjective": {
        "plain": Case(layers.AttentionObjective, TOKENS),
        "options": Case(
            lambda: layers.AttentionObjective(
                coverage_weight=0.5,
                reinforce_weight=0.1,
                entropy_weight=0.01,
                baseline_decay=0.8,
            ),
            {"inputs": (B, D)},
        ),
    },
    "AttentionSpeller": {
        "padding_scores": Case(
            _speller(seed=3),
            {"inputs": (B, T), "memory": VALUE, "memory_padding_mask": (B, S)},
            SCORES,
            ids_below=F,
        ),
        "samples": Case(
            _speller(sampling_probability=0.5, seed=3, unroll=True),
            {"inputs": (B, T), "memory": VALUE},
            ids_below=F,
        ),
        "one_step": Case(
            _speller(num_layers=1),
            {
                "inputs": (B, 1),
                "memory": VALUE,
                "initial_state": [(B, UNITS), (B, UNITS), (B, E)],
            },
            ids_below=F,
        ),
    },
    "PyramidalBLSTM": {
        "pairs": Case(lambda: layers.PyramidalBLSTM(UNITS), {"inputs": (B, 2 * T, D)}),
        "padding": Case(lambda: layers.PyramidalBLSTM(UNITS, reduction=1), PADDED),
    },
    "LogMelSpectrogram": {
        "padding": Case(
            _spectrogram(normalization="utterance", floor=1e-3),
            {"inputs": (B, CACHE), "padding_mask": (B, CACHE)},
            stays_float32=True,
        ),
        "statistics": Case(
            _spectrogram(
                fft_length=64,
                min_frequency=20.0,
                max_frequency=450.0,
                mean=[0.5] * HEADS,
                variance=[2.0] * HEADS,
            ),
            {"inputs": (B, CACHE)},
            stays_float32=True,
        ),
    },
}
