"""The report of an export, as a table and as JSON."""

import io
import json
from dataclasses import asdict, dataclass, field
from os import PathLike

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_attn.files.writing import write_atomically

_WIDTH = 100


@dataclass(frozen=True)
class ExportReport:
    """The result of an export or verification. `print(report)` shows a table.

    Attributes:
        path: Path of the artefact.
        format: `"saved_model"`, `"litert"` or `"onnx"`.
        quantization: None, `"float16"`, `"int8_dynamic"` or `"int8"`.
        bytes: Its size, all files together.
        operators: Number of each operator, over all signatures.
        inputs: Dtype and shape by signature and name; `?` is any size.
        outputs: The same for the outputs.
        max_abs_diff: The largest difference from Keras over all outputs and samples;
            None if nothing was compared, because it was not verified, or because no
            output has values, as of a detector that detects nothing.
        error: The largest error, which was compared with the tolerance; None if nothing
            was compared.
        error_measure: What `error` is, such as "root mean square error relative to the
            output" for a quantized artefact; None if nothing was compared.
        tolerance: The largest error allowed, see `export`; None if nothing was
            compared.
        not_compared: By signature, the outputs of which no value was compared with
            Keras; the notes say why.
        top1_agreement: Share of `sample_inputs`, or of their pixels, for which the
            artefact and Keras predict the same class, by output: (B, C), or
            (B, H, W, C) for images; for a generative model, share of the tokens of
            `sample_inputs`, given those before. Empty without `sample_inputs`.
        class_agreement: Of the pixels to which Keras gives a class, the share to which
            the artefact gives the same, by output and class, for outputs (B, H, W, C).
            Unlike the share of all pixels, it reveals a rare class that is lost.
        perplexity: For a generative model: perplexity of the tokens of `sample_inputs`
            (of the first 64), each given those before, by `"keras"` and the
            `"artefact"`. Empty without `sample_inputs`, or if the prompt has a fixed
            length.
        latency_ms: Median time of one call on the first sample, by signature, in
            milliseconds on this machine; empty if it was not verified.
        notes: What the exporter decided or changed.
        example: Six lines of Python that call the artefact, on made-up inputs. The
            table ends with them.
    """

    path: str
    format: str
    quantization: str | None
    bytes: int
    operators: dict[str, int]
    inputs: dict[str, dict[str, str]]
    outputs: dict[str, dict[str, str]]
    max_abs_diff: float | None = None
    tolerance: float | None = None
    error: float | None = None
    error_measure: str | None = None
    top1_agreement: dict[str, float] = field(default_factory=dict)
    class_agreement: dict[str, dict[int, float]] = field(default_factory=dict)
    perplexity: dict[str, float] = field(default_factory=dict)
    latency_ms: dict[str, float] = field(default_factory=dict)
    not_compared: dict[str, list[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    example: str = ""

    def to_json(self) -> str:
        """The report as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    def save(self, path: str | PathLike) -> None:
        """Writes `to_json()` to a file.

        Args:
            path: The file; an existing one is overwritten.
        """
        write_atomically(path, f"{self.to_json()}\n".encode())

    def __str__(self) -> str:
        table = Table(show_header=False, title=f"Export to {self.format}")
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in self._rows():
            # `Text`, because paths and notes may contain brackets, rich's markup.
            table.add_row(label, Text(text))
        console = Console(file=io.StringIO(), width=_WIDTH, record=True)
        console.print(table)
        text = console.export_text().rstrip()
        # Outside of the table, to be copied.
        return f"{text}\n\n{self.example}" if self.example else text

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("path", self.path)]
        rows.append(("quantization", self.quantization or "none (float32)"))
        rows.append(("size", f"{self.bytes:,} bytes"))
        for name in self.inputs:
            rows.append((f"{name}: inputs", _lines(self.inputs[name])))
            rows.append((f"{name}: outputs", _lines(self.outputs[name])))
        ranked = sorted(self.operators.items(), key=lambda item: (-item[1], item[0]))
        rows.append(("operators", ", ".join(f"{k} {v}" for k, v in ranked)))
        if self.max_abs_diff is None:
            rows.append(("verified", "no, not compared with Keras"))
        else:
            rows.append(("max abs diff", f"{self.max_abs_diff:.3g}"))
            rows.append(("error", f"{self.error:.3g}, {self.error_measure}"))
            rows.append(("tolerance", f"{self.tolerance:.3g}"))
            if self.not_compared:
                by_signature = self.not_compared.items()
                lines = [f"{name}: {', '.join(names)}" for name, names in by_signature]
                rows.append(("not compared", "\n".join(lines)))
        if self.top1_agreement:
            shares = [f"{k} {share:.1%}" for k, share in self.top1_agreement.items()]
            rows.append(("top-1 agreement", ", ".join(shares)))
        if self.class_agreement:
            shares = [_of_classes(k, by) for k, by in self.class_agreement.items()]
            rows.append(("agreement by class", "\n".join(shares)))
        if self.perplexity:
            values = [f"{who} {value:.5g}" for who, value in self.perplexity.items()]
            rows.append(("perplexity", ", ".join(values)))
        if self.latency_ms:
            times = [f"{name} {time:.3g} ms" for name, time in self.latency_ms.items()]
            rows.append(("latency", ", ".join(times)))
        if self.notes:
            rows.append(("notes", "\n".join(self.notes)))
        return rows


def _lines(tensors: dict[str, str]) -> str:
    return "\n".join(f"{name}: {text}" for name, text in tensors.items())


def _of_classes(name: str, shares: dict[int, float]) -> str:
    """The mean and the lowest of the shares of all classes."""
    worst = min(shares, key=lambda label: shares[label])
    mean = sum(shares.values()) / len(shares)
    return f"{name} {mean:.1%} on average, {shares[worst]:.1%} for class {worst}"
