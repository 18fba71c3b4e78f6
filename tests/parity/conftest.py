"""What is not collected yet."""

# As `tests/models/conftest.py` says of XLNet.
collect_ignore = ["test_xlnet_checkpoints.py"]
