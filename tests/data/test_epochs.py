"""Orders that depend only on the seed and the epoch."""

from backend import skip_module_without_tensorflow

from keras_attn.data import shuffled_dataset

skip_module_without_tensorflow("tf.data feeds TensorFlow")


def test_a_list_of_texts_has_a_new_order_in_each_epoch():
    texts = [f"text {number}" for number in range(11)]

    def order(epoch):
        rows = shuffled_dataset(texts, seed=3, epoch=epoch).as_numpy_iterator()
        return [row.decode() for row in rows]

    assert sorted(order(0)) == sorted(texts)
    assert order(0) == order(0) != order(1)
