"""GPT-2 in ONNX Runtime GenAI, which `text.py` times; not a benchmark by itself.

GenAI 0.18 runs the type "gpt2", but its model builder makes no such model. So the graph
is made here, of the fused operators of ONNX Runtime that its builder makes others of
(`LayerNormalization`, `Attention` with past keys and values, `FastGelu`), float32.

Legend: B batch, T length, N heads, H head size, D width, V vocabulary.
"""

import json
from pathlib import Path

VOCABULARY, POSITIONS = 50_257, 1024


def write(folder, blocks):
    """Writes a GPT-2 with random weights as GenAI reads it.

    Args:
        folder: An empty folder.
        blocks: `tables.BASE` or the like.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    width, mlp = blocks["hidden_dim"], blocks["mlp_dim"]
    layers, heads = blocks["num_layers"], blocks["num_heads"]
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name, *shape):
        values = rng.normal(0, 0.02, shape).astype("float32")
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    def node(kind, inputs, output, domain="", **attributes):
        outputs = [output] if isinstance(output, str) else output
        nodes.append(
            helper.make_node(kind, inputs, outputs, domain=domain, **attributes)
        )
        return outputs[0]

    def norm(x, name):
        scale, bias = weight(f"{name}_scale", width), weight(f"{name}_bias", width)
        return node("LayerNormalization", [x, scale, bias], name, epsilon=1e-5)

    def dense(x, name, inner, outer, *, bias=True):
        product = node("MatMul", [x, weight(f"{name}_w", inner, outer)], f"{name}_xw")
        if not bias:
            return product
        return node("Add", [product, weight(f"{name}_b", outer)], name)

    table = weight("table", VOCABULARY, width)
    places = weight("places", POSITIONS, width)
    x = node("Gather", [table, "input_ids"], "tokens")
    x = node("Add", [x, node("Gather", [places, "position_ids"], "at")], "hidden")
    contrib = "com.microsoft"
    mask = node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
    for i in range(layers):
        y = norm(x, f"norm_{i}")
        kernel = weight(f"qkv_w_{i}", width, 3 * width)
        bias = weight(f"qkv_b_{i}", 3 * width)
        y = node(
            "Attention",
            [y, kernel, bias, mask, f"past_{i}"],
            [f"attended_{i}", f"present_{i}"],
            contrib,
            num_heads=heads,
            unidirectional=1,
        )
        y = dense(y, f"output_{i}", width, width)
        x = node("Add", [x, y], f"residual_{i}")
        y = norm(x, f"mlp_norm_{i}")
        y = dense(y, f"expand_{i}", width, mlp, bias=False)
        y = node("FastGelu", [y, weight(f"gelu_b_{i}", mlp)], f"gelu_{i}", contrib)
        y = dense(y, f"contract_{i}", mlp, width)
        x = node("Add", [x, y], f"block_{i}")
    transposed = node("Transpose", [table], "table_t", perm=[1, 0])
    node("MatMul", [norm(x, "final"), transposed], "logits")

    def value(name, element, *shape):
        return helper.make_tensor_value_info(name, element, shape)

    caches = [2, "B", heads, "P", width // heads]
    names = ("input_ids", "position_ids")
    inputs = [value(name, TensorProto.INT32, "B", "T") for name in names]
    inputs.append(value("attention_mask", TensorProto.INT32, "B", "S"))
    outputs = [value("logits", TensorProto.FLOAT, "B", "T", VOCABULARY)]
    for i in range(layers):
        inputs.append(value(f"past_{i}", TensorProto.FLOAT, *caches))
        caches[3] = "S"
        outputs.append(value(f"present_{i}", TensorProto.FLOAT, *caches))
        caches[3] = "P"
    graph = helper.make_graph(nodes, "gpt2", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(contrib, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, Path(folder, "model.onnx"))
    decoder = {
        "filename": "model.onnx",
        "hidden_size": width,
        "head_size": width // heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": layers,
        "session_options": {},
        "inputs": {
            "input_ids": "input_ids",
            "position_ids": "position_ids",
            "attention_mask": "attention_mask",
            "past_names": "past_%d",
        },
        "outputs": {"logits": "logits", "present_names": "present_%d"},
    }
    config = {
        "model": {
            "type": "gpt2",
            "vocab_size": VOCABULARY,
            "context_length": POSITIONS,
            "bos_token_id": VOCABULARY - 1,
            "eos_token_id": VOCABULARY - 1,
            "pad_token_id": VOCABULARY - 1,
            "decoder": decoder,
        },
        "search": {"max_length": POSITIONS},
    }
    Path(folder, "genai_config.json").write_text(json.dumps(config))


def generation(folder, prompt, new):
    """The call that continues a prompt of ones, greedy.

    Args:
        folder: What `write` wrote.
        prompt: Number of tokens of the prompt.
        new: Number of new tokens.
    """
    import numpy as np
    import onnxruntime_genai as genai  # pyright: ignore[reportMissingImports]

    model = genai.Model(str(folder))

    def call():
        options = genai.GeneratorParams(model)
        length = prompt + new
        options.set_search_options(
            max_length=length, min_length=length, do_sample=False, batch_size=1
        )
        generator = genai.Generator(model, options)
        generator.append_tokens(np.ones((1, prompt), "int32"))
        while not generator.is_done():
            generator.generate_next_token()
        return generator.get_sequence(0)

    return call
