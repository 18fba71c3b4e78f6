"""What `gpu.py` times on PyTorch: its fused attention, and models of transformers.

Eager, as most people run them; on the CPU where there is no GPU.
"""

import gc
import time
from typing import Any

import tables
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from gpu_inputs import (
    CLASSES,
    Prepared,
    attention_inputs,
    compared,
    images_and_labels,
    tokens,
)

IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"
# As on JAX by default.
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def describe():
    """The device and the versions."""
    device = torch.cuda.get_device_name() if IS_GPU else "CPU"
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    return {"text": f"{device}, {versions}"}


def free():
    """Lets go of models and of memory that is kept for later."""
    gc.collect()
    torch.cuda.empty_cache()
    return {}


def prepare(sizes, row, dtype, name):
    """A contestant of a row."""
    what, *details = row.split()
    if what in ("causal", "padding"):
        length, work = details
        return attention(sizes, what, length, work, dtype)
    torch.manual_seed(0)
    if "generation" in row:
        return generation(sizes, int(details[-1]), dtype)
    if "forward" in row:
        return forward(sizes, what, dtype)
    return training(sizes, what, dtype, name)


def prepared(call, calls, values=None):
    """Times a call, and measures its memory."""
    call()  # Allocates what stays.
    free()
    memory = None
    if IS_GPU:
        torch.cuda.reset_peak_memory_stats()
        call()
        memory = torch.cuda.max_memory_allocated()

    def measured():
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return {"ms": 1000 * (time.perf_counter() - start) / calls}

    return Prepared(measured, memory, values)


def synchronize():
    """Waits for the GPU."""
    if IS_GPU:
        torch.cuda.synchronize()


def attention(sizes, mask, length, work, dtype):
    """`scaled_dot_product_attention`, which chooses its kernel."""
    tensors, lengths = attention_inputs(sizes, int(length))
    *inputs, upstream = (
        torch.from_numpy(x).to(DEVICE, getattr(torch, dtype)) for x in tensors
    )
    options: dict[str, Any] = {"is_causal": True}
    if mask == "padding":
        is_real = torch.arange(int(length)) < torch.from_numpy(lengths)[:, None]
        options = {"attn_mask": is_real[:, None, None].to(DEVICE)}
    for tensor in inputs:
        tensor.requires_grad_(work == "training")

    def call():
        query, key, value = inputs
        outputs = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, **options
        )
        if work == "forward":
            return (outputs,)
        return (outputs, *torch.autograd.grad(outputs, inputs, upstream))

    places = torch.from_numpy(compared(inputs[0].numel())).to(DEVICE)
    values = [x.detach().reshape(-1)[places].float().tolist() for x in call()]
    return prepared(call, sizes.calls, values)


def forward(sizes, name, dtype):
    """A forward pass of a model."""
    model, inputs = model_and_inputs(sizes, name, is_training=False)
    model.to(DEVICE, getattr(torch, dtype)).eval()
    inputs = {
        key: x.to(DEVICE, getattr(torch, dtype) if x.is_floating_point() else None)
        for key, x in inputs.items()
    }

    @torch.no_grad()
    def call():
        return model(**inputs)[0]

    return prepared(call, sizes.calls)


def training(sizes, name, dtype, contestant):
    """A training step of a model, or of one with PEFT's LoRA weights."""
    model, inputs = model_and_inputs(sizes, name, is_training=True)
    if contestant == "torch lora":
        import peft  # pyright: ignore[reportMissingImports]

        options = peft.LoraConfig(
            r=8,
            lora_alpha=8,
            target_modules=["query", "value"],
            modules_to_save=["classifier"],
        )
        model = peft.get_peft_model(model, options)
    model.to(DEVICE).train()
    inputs = {key: x.to(DEVICE) for key, x in inputs.items()}
    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=IS_GPU)

    def call():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled="bfloat16" in dtype):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()

    return prepared(call, sizes.calls)


def generation(sizes, rows, dtype):
    """Greedy generation by GPT-2."""
    model: Any = transformers.GPT2LMHeadModel(gpt2_config(sizes))
    model.to(DEVICE, getattr(torch, dtype)).eval()
    length, new = sizes.generation
    prompt = torch.ones((rows, length), dtype=torch.long, device=DEVICE)

    def call():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )

    return prepared(call, 1)


def gpt2_config(sizes):
    """GPT-2 small."""
    return transformers.GPT2Config(
        n_layer=sizes.blocks["num_layers"],
        n_head=sizes.blocks["num_heads"],
        n_embd=sizes.blocks["hidden_dim"],
        n_inner=sizes.blocks["mlp_dim"],
    )


def model_and_inputs(sizes, name, is_training):
    """A model, and its inputs by name, with labels for training."""
    model: Any
    if name in ("vit", "swin"):
        images, labels = images_and_labels(sizes)
        inputs = {"pixel_values": torch.from_numpy(images).permute(0, 3, 1, 2)}
        options = {"num_labels": CLASSES, "image_size": sizes.side}
        if name == "vit":
            config = transformers.ViTConfig(
                **options, **tables.hugging_face(sizes.blocks)
            )
            model = transformers.ViTForImageClassification(config)
        else:
            config = transformers.SwinConfig(
                **options,
                embed_dim=sizes.swin["hidden_dim"],
                depths=sizes.swin["num_blocks"],
                num_heads=sizes.swin["num_heads"],
                window_size=sizes.swin["window_size"],
            )
            model = transformers.SwinForImageClassification(config)
        labels = torch.from_numpy(labels).long()
    else:
        token_ids = torch.from_numpy(tokens(sizes, name)).long()
        inputs = {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids)}
        labels = torch.zeros(len(token_ids), dtype=torch.long)
        if name == "gpt2":
            model, labels = transformers.GPT2LMHeadModel(gpt2_config(sizes)), token_ids
        else:
            config = transformers.BertConfig(**tables.hugging_face(sizes.blocks))
            build = transformers.BertModel
            if is_training:
                build = transformers.BertForSequenceClassification
            model = build(config)
    return model, {**inputs, **({"labels": labels} if is_training else {})}
