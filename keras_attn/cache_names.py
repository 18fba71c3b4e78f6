"""Names in the state of a decoder with key/value caches.

The decoding loop writes the caches of a Keras model, a runner those of an artefact;
this module, which imports nothing, is what both read.
"""

# The state that holds the slot of the next token in the caches.
CACHE_INDEX = "cache_index"
# A step returns `new_key_0`, …, to be written into the state `key_0`, … at that slot.
NEW = "new_"
