"""Every Transformer and every image classifier is one graph for torch's compiler: a graph break would cost speed.

In a separate process, because compiled code must not contain the shape checks of the test run.
"""

from pathlib import Path

from forked import run_code

SCRIPT = """
import torch
from regard.families.catalog import MODELS

torch.manual_seed(0)
for name in "transformer", "t5", "gpt", "bert":
    sizes = {"width": 16, "heads": 4}
    both = {"source_vocab": 11, "target_vocab": 11, "encoder_depth": 1, "decoder_depth": 1}
    sizes |= both if name in ("transformer", "t5") else {"vocab": 11, "depth": 1}
    model = MODELS[name].model(MODELS[name].config(**sizes)).eval()
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counting, fullgraph=True, dynamic=True)
    for rows, source, target in (3, 7, 5), (4, 9, 6), (2, 6, 11):
        tokens = torch.randint(4, 11, (rows, source))
        texts = {"gpt": (tokens,), "bert": (tokens, tokens > 3)}.get(
            name, (tokens, tokens > 3, torch.randint(4, 11, (rows, target)))
        )
        expected, found = (getattr(output, "hidden", output) for output in (model(*texts), compiled(*texts)))
        torch.testing.assert_close(found, expected)
    print(name, len(graphs))
"""


def test_one_graph_serves_every_length(tmp_path: Path):
    code, output, messages = run_code(SCRIPT, tmp_path)
    expected = ["transformer 1", "t5 1", "gpt 1", "bert 1"]
    assert (code, output.splitlines()) == (0, expected), messages[-2000:]


PICTURES = """
import torch
from regard.families.catalog import MODELS

torch.manual_seed(0)
for name, values in (
    ("resnet", {}), ("resnet", {"spatial": "local", "window": 3}), ("vit", {"depth": 1}),
    ("swin", {}), ("swin", {"stem": "convolutions"}), ("mvit", {}),
):
    sizes = {**MODELS[name].presets["tiny"], **values, "image_size": 16, "classes": 3}
    sizes |= {"depths": (2,), "heads": (2,), "window": 4} if name == "swin" else {}
    sizes |= {"widths": (16,), "depths": (1,)} if name == "resnet" else {"depths": (1,)} if name == "mvit" else {}
    model = MODELS[name].model(MODELS[name].config(**sizes)).eval()
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=counting, fullgraph=True, dynamic=False)
    for rows in 3, 2, 3:
        images = torch.randn(rows, 3, 16, 16)
        torch.testing.assert_close(compiled(images), model(images))
    print(len(graphs))
"""


def test_pictures_are_one_graph_for_each_size_of_a_batch(tmp_path: Path):
    code, output, messages = run_code(PICTURES, tmp_path)
    assert (code, output.split()) == (0, ["2"] * 6), messages[-2000:]
