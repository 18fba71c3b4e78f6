"""The film reviews of `reviews_feedback.py`, and what is trained before its methods."""

import time

import keras
import numpy as np
import tensorflow as tf
from text_data import minilm_folder, read_sst2

from keras_attn import models
from keras_attn.data import (
    SubwordTokenizer,
    WordPieceTokenizer,
    completion_dataset,
    load_text_tokenizer,
    load_tokenizer,
    prompt_dataset,
    ranking_dataset,
)
from keras_attn.losses import RankingLoss, SmoothedCrossEntropy
from keras_attn.metrics import Perplexity, RankingAccuracy
from keras_attn.models import as_reward_model, normalize_scores
from keras_attn.training import AdamW, BackupAndResume, CompletionSampling, LinearWarmup


class Reviews:
    """The reviews, their tokens, and everything that is trained before the methods.

    Args:
        arguments: The command line.
    """

    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.run_dir
        self.folder.mkdir(parents=True, exist_ok=True)
        self.texts, self.labels = self.read("train", arguments.limit)
        self.held_out, self.held_out_labels = self.read("dev", None)
        path = self.folder / "tokenizer.json"
        if not path.exists():
            size = 200 if arguments.small else 4000
            SubwordTokenizer.train(self.texts, vocabulary_size=size).save(path)
        self.tokenizer = load_tokenizer(path)
        self.sampling = CompletionSampling(
            arguments.new_tokens, self.tokenizer.end_token_id, temperature=0.7
        )
        self.max_length = 16 + arguments.new_tokens

    def read(self, split, limit):
        """Texts and labels, 1 = positive, in another order."""
        texts, labels = read_sst2(self.arguments.data_dir, split)
        # The file has the negative reviews first.
        order = np.random.default_rng(0).permutation(len(texts))[:limit]
        return [texts[x] for x in order], [labels[x] for x in order]

    def prompts(self, texts):
        """The start token and the first three words of each review, at most 16."""
        start = [self.tokenizer.start_token_id]
        heads = [" ".join(text.split()[:3]) for text in texts]
        return [(start + self.tokenizer.encode(head))[:16] for head in heads]

    def completions(self, texts):
        """The tokens after the third word; one token at least."""
        tails = [" ".join(text.split()[3:]) or "." for text in texts]
        return [self.tokenizer.encode(tail) for tail in tails]

    def batches(self, texts, count, batch_size, epoch=None, **options):
        """Batches of prompts."""
        prompts = self.prompts(texts[:count])
        return prompt_dataset(prompts, batch_size=batch_size, epoch=epoch, **options)

    def policy(self):
        """The GPT after fine-tuning on the continuations; made if it is missing."""
        path, arguments = self.folder / "sft.keras", self.arguments
        if path.exists():
            return keras.saving.load_model(path, compile=False)
        keras.utils.set_random_seed(0)
        width = arguments.hidden_dim
        model = models.create(
            "gpt2_small",
            vocabulary_size=self.tokenizer.vocabulary_size,
            num_layers=arguments.num_layers,
            hidden_dim=width,
            num_heads=max(1, width // 32),
            mlp_dim=4 * width,
            max_sequence_length=self.max_length,
        )
        backup = BackupAndResume(self.folder / "sft_backup")

        def rows(texts, **options):
            return completion_dataset(
                self.prompts(texts),
                self.completions(texts),
                max_length=self.max_length,
                batch_size=32,
                end_token_id=self.tokenizer.end_token_id,
                **options,
            )

        train = rows(self.texts, shuffle_seed=0, epoch=backup.epoch)
        steps = arguments.sft_epochs * int(train.cardinality())
        model.compile(
            AdamW(warmed_up(2e-3, steps), weight_decay=0.1),
            SmoothedCrossEntropy(),
            weighted_metrics=[Perplexity()],
            jit_compile=jit(),
        )
        timed(
            f"sft, {model.count_params():,} parameters",
            model.fit,
            train,
            validation_data=rows(self.held_out),
            epochs=arguments.sft_epochs,
            shuffle=False,
            verbose=2,
            callbacks=[backup],
        )
        model.save(path)
        return model

    def reward_model(self):
        """The reward model, normalized on samples of the GPT; made if missing."""
        path, arguments = self.folder / "reward.keras", self.arguments
        if path.exists():
            return keras.saving.load_model(path, compile=False)
        policy = self.policy()
        keras.utils.set_random_seed(1)
        model = as_reward_model(models.build_gpt_encoder(self.policy()))
        half = len(self.texts) // 2
        train = self.pairs(self.texts[:half], self.labels[:half], 2, shuffle_seed=0)
        held_out = self.pairs(self.held_out, self.held_out_labels, 1)
        steps = arguments.reward_epochs * int(train.cardinality())
        model.compile(
            AdamW(warmed_up(2e-4, steps), weight_decay=0.1),
            RankingLoss(2),
            weighted_metrics=[RankingAccuracy(2)],
            jit_compile=jit(),
        )
        timed(
            "reward model",
            model.fit,
            train,
            validation_data=held_out,
            epochs=arguments.reward_epochs,
            shuffle=False,
            verbose=2,
        )
        samples = []
        for step, prompts in enumerate(self.batches(self.texts, 512, 64)):
            found = self.sampling.sample(policy, as_arrays(prompts), seed=step)
            samples.append(found.right_padded(0))
        inputs = stacked(samples)
        model = normalize_scores(model, inputs)
        model.save(path)
        return model

    def pairs(self, texts, labels, rounds, **options):
        """Pairs of a positive and a negative review, without a prompt."""
        random = np.random.default_rng(0)
        rows = [
            prompt + completion
            for prompt, completion in zip(
                self.prompts(texts), self.completions(texts), strict=True
            )
        ]
        good, bad = (
            [row for row, label in zip(rows, labels, strict=True) if label == wanted]
            for wanted in (1, 0)
        )
        count = min(len(good), len(bad))
        both = []
        for _ in range(rounds):
            orders = [random.permutation(len(x))[:count] for x in (good, bad)]
            both += [[good[i], bad[j]] for i, j in zip(*orders, strict=True)]
        return ranking_dataset(
            [[]] * len(both),
            both,
            [[1.0, 0.0]] * len(both),
            max_length=self.max_length,
            batch_size=32,
            end_token_id=self.tokenizer.end_token_id,
            **options,
        )

    def judge(self):
        """A function of texts to whether each is positive; made if it is missing."""
        folder, arguments = self.folder / "judge", self.arguments
        trained = folder / "classifier.keras"
        if arguments.small and not (folder / "vocab.txt").exists():
            folder.mkdir(exist_ok=True)
            WordPieceTokenizer.train(self.texts, vocabulary_size=200).save(folder)
        source = (
            folder if arguments.small else arguments.judge or minilm_folder("--judge")
        )
        tokenizer = load_text_tokenizer(source)

        def encode(texts):
            return tokenizer.encode_batch(texts, max_length=64)

        if trained.exists():
            model = keras.saving.load_model(trained, compile=False)
        else:
            keras.utils.set_random_seed(2)
            if arguments.small:
                sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "mlp_dim": 8}
                encoder = models.create("bert_base", vocabulary_size=200, **sizes)
                model = models.build_bert_classifier(encoder, num_classes=2)
            else:
                model = models.load_checkpoint(source, task="classifier", num_classes=2)
            half = len(self.texts) // 2
            texts, labels = self.texts[half:], np.array(self.labels[half:])
            steps = arguments.judge_epochs * -(-len(texts) // 32)
            model.compile(
                AdamW(warmed_up(5e-5, steps)),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                jit_compile=jit(),
            )
            timed(
                "judge",
                model.fit,
                encode(texts),
                labels,
                validation_data=(encode(self.held_out), np.array(self.held_out_labels)),
                epochs=arguments.judge_epochs,
                verbose=2,
            )
            folder.mkdir(exist_ok=True)
            model.save(trained)

        def is_positive(texts):
            return model.predict(encode(texts), verbose=0).argmax(axis=-1) == 1

        return is_positive


def jit():
    """Whether XLA compiles: on a CPU that takes longer than it saves in a short run.

    JAX has no other way to compile a step.
    """
    on_jax = keras.backend.backend() == "jax"
    return on_jax or bool(tf.config.list_logical_devices("GPU"))


def warmed_up(rate, steps):
    """A learning rate that rises during a tenth of the steps, then falls to 0."""
    return LinearWarmup(rate, max(1, steps // 10), steps + 1)


def as_arrays(prompts):
    """A batch as NumPy arrays."""
    return {name: keras.ops.convert_to_numpy(x) for name, x in prompts.items()}


def stacked(rows):
    """Batches of tokens and masks as the inputs of a model."""
    width = max(ids.shape[1] for ids, _ in rows)
    ids, masks = (
        np.concatenate(
            [np.pad(x[i], [(0, 0), (0, width - x[i].shape[1])]) for x in rows]
        )
        for i in (0, 1)
    )
    return {"token_ids": ids, "padding_mask": masks}


def timed(what, function, *args, **kwargs):
    """Calls a function, and prints how long it took."""
    start = time.perf_counter()
    result = function(*args, **kwargs)
    print(f"{what}: {time.perf_counter() - start:.0f} s", flush=True)
    return result
