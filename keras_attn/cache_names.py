"""Names in the state of a decoder with key/value caches.

The decoding loop writes the caches of a Keras model, and a runner the caches of an
artefact. Both read the names from this module, which imports nothing.
"""

# The state that holds the slot of the next token in the caches.
CACHE_INDEX = "cache_index"
# A step returns `new_key_0`, …, to be written into the state `key_0`, … at that slot.
NEW = "new_"
