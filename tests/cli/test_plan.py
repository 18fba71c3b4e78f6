"""`keras-attn plan`: the cost of a model."""


def test_a_plan_is_printed(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command("plan", "gpt2_small", "--batch", "2", "--sequence", "8") == 0
    for text in (
        "gpt2_small: 2 x 8 tokens",
        "In float32. Memory is that of one device",
        "124,439,808",
        "498 MB",  # Weights.
        "adamw",
        "996 MB",
        "1.18 MB of keys, values or states",
    ):
        assert text in command.out
    options = ["--devices", "2", "--batch", "2", "--sequence", "8"]
    assert command("plan", "bert_tiny", *options, "--dtype", "mixed_bfloat16") == 0
    assert "In mixed_bfloat16. Memory is that of each of 2 devices" in command.out
    assert "cache" not in command.out


def test_images_are_counted_in_rows(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command("plan", "cnn_self_attention", "--batch", "3") == 0
    assert "cnn_self_attention: 3 rows" in command.out
    assert "FLOPs per row" in command.out
    refused = command.refuses("plan", "cnn_self_attention", "--sequence", "8")
    assert "`sequence` is for models of tokens" in refused


def test_wrong_options(command):
    assert "did you mean gpt2_small" in command.refuses("plan", "gpt2_smal")
    assert "`dtype` must be one of" in command.refuses(
        "plan", "bert_tiny", "--dtype", "half"
    )
    assert "multiple of `devices`" in command.refuses(
        "plan", "bert_tiny", "--devices", "2"
    )
