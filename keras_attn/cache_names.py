"""Names in the state of a decoder with key/value caches.

The decoding loop writes the caches of a Keras model, and a runner the caches of an
artefact. Both read the names from this module, which imports nothing.
"""

# The state that says at which index of the caches the next token is written.
CACHE_INDEX = "cache_index"
# A step returns `new_key_0`, …, to be written into the state `key_0`, … at that index.
NEW = "new_"
