"""The compiled part of `generate_all`: a prompt enters a row, then rows go on.

A call writes the state of one new prompt into its row, then chooses tokens and steps
until a row ends that another prompt can take, or all have ended. Each row has its own
number of tokens, and its own `cache_index`, at which its entries are written.

Legend: B rows, M length of the buffer of new tokens; of a cache: L length, G key/value
heads, H head size.
"""

import keras
from keras import ops

from keras_attn.cache_names import CACHE_INDEX, NEW
from keras_attn.decoding.loop import changing_state, like
from keras_attn.decoding.pair import DecodingFunctions
from keras_attn.decoding.strategies import set_token, with_traced_settings


class ContinuousLoop(keras.Model):
    """The loop as a Keras model, so that each backend passes it its weights.

    Call arguments:
        inputs: A dictionary of dictionaries:
            `state`: the inputs of `step` but the token, B rows, and `logits`, (B, V).
            `new`: the same of one prompt, 1 row.
            `row`: the row that it takes, int32 ().
            `rows`: of each row `token_ids` (B, M), `count` (B,) how many of them are
            known, `limit` (B,) how many are wanted, `scores` (B,), `done` (B,), and
            `uniform` (B, M) if the strategy needs random numbers.
            `is_full`: bool (), whether the loop runs at all: False if another prompt is
            to enter first.
            `is_waited_for`: bool (), whether it returns as soon as a row ends.
            `end_token_ids`, `pad_token_id`: as in `Settings`.
            `numbers`: settings of the strategy.

    Returns:
        `state` and `rows` after it, without `limit` and `uniform`.

    Args:
        functions: `step` of the model.
        strategy: The strategy to compile; the values of its `numbers` are inputs.
    """

    def __init__(self, functions: DecodingFunctions, strategy):
        # Not the global policy's precision: random numbers must not be rounded to it.
        super().__init__(name="generate_all", dtype="float32", autocast=False)
        self.strategy = strategy
        # An attribute, so that Keras passes its weights to the compiled function.
        self.step = functions.step
        self.step_outputs = functions.step_outputs
        self.built = True  # It has no weights but `step`'s.

    def call(self, inputs, training=False):
        """See the class; nothing differs in training."""
        strategy = with_traced_settings(self.strategy, inputs["numbers"])
        ends, pad = inputs["end_token_ids"], inputs["pad_token_id"]
        rows = dict(inputs["rows"])
        limit, uniform = rows.pop("limit"), rows.pop("uniform", None)
        state = {
            name: _with_row(tensor, inputs["new"][name], inputs["row"])
            for name, tensor in inputs["state"].items()
        }
        changing = changing_state(state, self.step_outputs)
        before = rows["done"]

        def goes_on(rows, changing):
            has_ended = ops.any(ops.logical_and(rows["done"], ops.logical_not(before)))
            stops = ops.logical_or(
                ops.all(rows["done"]),
                ops.logical_and(inputs["is_waited_for"], has_ended),
            )
            return ops.logical_and(inputs["is_full"], ops.logical_not(stops))

        def body(rows, changing):
            count = ops.expand_dims(rows["count"], 1)
            number = None
            if uniform is not None:
                last = ops.minimum(count, uniform.shape[1] - 1)
                number = ops.take_along_axis(uniform, last, axis=1)
            # A search of one token.
            search = strategy.start(ops.shape(count)[0], 1, pad, number)
            search = {**search, "scores": rows["scores"], "done": rows["done"]}
            token, _, search = strategy.advance(
                search, changing["logits"], 0, ends, pad
            )
            # A row that has ended gets a token of padding, which is not counted.
            token_ids = set_token(rows["token_ids"], token, count)
            is_new = ops.logical_not(rows["done"])
            count = rows["count"] + ops.cast(is_new, "int32")
            rows = {
                "token_ids": token_ids,
                "count": count,
                "scores": search["scores"],
                "done": ops.logical_or(search["done"], count >= limit),
            }
            now = {**state, **changing}
            now.pop("logits")
            outputs = self.step({**now, "token_ids": token})
            return rows, _after_step(changing, outputs, rows["done"])

        rows, changing = ops.while_loop(goes_on, body, (rows, changing))
        return {"rows": rows, "state": {**state, **changing}}


def _with_row(tensor, new, row):
    """A tensor, (B, ...), with another row, (1, ...)."""
    start = [row, *[0] * (len(tensor.shape) - 1)]
    return ops.slice_update(tensor, start, ops.cast(new, tensor.dtype))


def _after_step(changing, outputs, done):
    """The state of each row after its step; a row that has ended keeps its own.

    So its `position` stays within the model, and its `cache_index` within the caches,
    where a new prompt overwrites what it writes.
    """
    after = {}
    for name, old in changing.items():
        if NEW + name in outputs:
            entry, cache_index = outputs[NEW + name], changing[CACHE_INDEX]
            after[name] = _update_cache(old, entry, cache_index)
        else:
            new = like(outputs[name], old)
            ended = ops.reshape(done, (-1, *[1] * (len(old.shape) - 1)))
            after[name] = ops.where(ended, old, new)
    return after


def _update_cache(cache, entry, cache_index):
    """`cache`, (B, G, L, H), with `entry`, (B, G, 1, H), at an index per row, (B,)."""
    batch, heads = ops.shape(cache)[0], cache.shape[1]
    each = ops.arange(batch * heads, dtype="int32")
    row, head = each // heads, each % heads
    slot = ops.repeat(ops.cast(cache_index, "int32"), heads)
    entry = ops.reshape(ops.cast(entry, cache.dtype), (-1, cache.shape[3]))
    return ops.scatter_update(cache, ops.stack([row, head, slot], axis=1), entry)
