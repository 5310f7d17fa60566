"""regard recognise: which shape a cloud of points has."""

from typing import Annotated

import typer

from regard.verbs.options import Device, Model


def recognise(
    model: Model,
    files: Annotated[list[str], typer.Argument(help="Files with three numbers a line.")],
    device: Device = "cpu",
) -> None:
    """Recognise shapes: one line out for each file, its name TAB its shape.

    Example: regard recognise cloud.xyz -m runs/drawn-clouds
    """
    import regard

    pipeline = regard.load(model, device=device)
    for file, shape in zip(files, pipeline.recognise(*files), strict=True):
        print(f"{file}\t{shape}")
