"""Pictures of position embeddings."""

import numpy as np
import pytest
from attention_reference import sinusoid
from viz.figures import band_edges, line_values, panels

from keras_attn.layers import LearnedPositionEmbedding, SinusoidalPositionEmbedding
from keras_attn.viz import plot_positions, save_figure

RNG = np.random.default_rng(0)


def drawn(figure):
    """The vectors, and the means and the band of the distances."""
    (heat,) = panels(figure)
    (distance,) = (ax for ax in figure.axes if ax.lines)
    offsets, means = line_values(distance.lines[0])
    np.testing.assert_array_equal(offsets, np.arange(len(means)))
    return np.asarray(heat.images[0].get_array()), means, distance.collections[0]


def test_sinusoids_have_one_distance_for_each_offset(tmp_path):
    layer = SinusoidalPositionEmbedding(max_wavelength=500)
    figure = plot_positions(layer, length=7, width=10, title="five $ waves")
    vectors, means, band = drawn(figure)
    expected = [sinusoid(position, 10, 500) for position in range(7)]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    # ‖p_t - p_{t+k}‖² = Σ_i 2 - 2 cos(k w_i)
    waves = 500 ** (-np.arange(0, 10, 2) / 10)
    angles = np.arange(7)[:, None] * waves
    distances = np.sqrt((2 - 2 * np.cos(angles)).sum(1))
    np.testing.assert_allclose(means, distances, atol=1e-5)
    for offset, distance in enumerate(distances):
        assert band_edges(band, offset) == pytest.approx((distance,) * 2, abs=1e-5)
    titles = [ax.get_title() for ax in figure.axes[:2]]
    assert titles[0] == "vectors: 7 positions × 10 dimensions"
    labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]
    assert labels[0] == ("dimension", "position") and labels[2] == ("", "value")
    assert labels[1][0] == "offset k, in positions" and labels[1][1]
    low, high = panels(figure)[0].images[0].get_clim()
    assert -low == high == pytest.approx(np.abs(expected).max())
    assert figure.get_suptitle() == "five $ waves"
    save_figure(figure, tmp_path / "positions.png")


def test_sizes_of_sinusoids():
    vectors, *_ = drawn(plot_positions(SinusoidalPositionEmbedding()))
    assert vectors.shape == (50, 128)
    layer = SinusoidalPositionEmbedding("concatenate", position_dim=6)
    vectors, *_ = drawn(plot_positions(layer))
    assert vectors.shape == (50, 6)


def test_the_band_has_the_extremes_of_learned_vectors():
    # NumPy cannot draw bfloat16.
    layer = LearnedPositionEmbedding(5, first_row=2, dtype="bfloat16")
    layer(np.zeros((1, 5, 3), "float32"))
    table = RNG.integers(-9, 9, (7, 3)).astype("float32")
    layer.embeddings.assign(table)
    vectors, means, band = drawn(plot_positions(layer, length=4))
    # The rows before position 0 are left out.
    np.testing.assert_array_equal(vectors, table[2:6])
    for offset in range(1, 4):
        found = np.linalg.norm(vectors[offset:] - vectors[:-offset], axis=1)
        assert means[offset] == pytest.approx(found.mean())
        assert band_edges(band, offset) == pytest.approx((found.min(), found.max()))
    same, *_ = drawn(plot_positions(table[2:6]))
    np.testing.assert_array_equal(same, vectors)


@pytest.mark.parametrize(
    ("positions", "options", "error", "match"),
    [
        ("abc", {}, TypeError, "`positions` must be a Sinus.*Received: positions='abc"),
        ([[1, 2], [3]], {}, TypeError, r"Received: positions=\[\[1, 2\], \[3\]\]"),
        (np.ones(3), {}, ValueError, r"`positions` must be vectors .*shape \(3,\)"),
        (np.ones((1, 3)), {}, ValueError, r"at least two.*shape \(1, 3\)"),
        ([[1, 2, np.inf], [1, 2, np.nan]], {}, ValueError, "finite.*2 of 6 not finite"),
        (np.ones((5, 3)), {"length": 6}, ValueError, "`length` must .* most 5, .*=6"),
        (np.ones((5, 3)), {"width": 3}, ValueError, "`width` is for sinusoids.*=3"),
        (LearnedPositionEmbedding(5), {}, ValueError, "`positions` must be built.*Rec"),
        (
            SinusoidalPositionEmbedding(),
            {"length": 1},
            ValueError,
            "`length` must .*least 2.*=1",
        ),
        (
            SinusoidalPositionEmbedding(),
            {"length": 0},
            ValueError,
            "`length` must be a",
        ),
        (SinusoidalPositionEmbedding(), {"width": -1}, ValueError, "`width` must be a"),
    ],
)
def test_what_cannot_be_drawn(positions, options, error, match):
    with pytest.raises(error, match=match):
        plot_positions(positions, **options)
