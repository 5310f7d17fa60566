"""What `regard look` and the page show of a point cloud."""

from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Panel, Tokens
from regard.look.report import AttentionReport
from regard_pointclouds.data import read_cloud
from regard_pointclouds.pipeline import CloudClassifier


def inspect_cloud(pipeline: CloudClassifier, given: GivenInput) -> Inspected:
    """Every layer and head, between points named by their coordinates."""
    (shape,) = pipeline.recognise(given.file)
    axis = Tokens([" ".join(f"{value:.1f}" for value in point) for point in read_cloud(given.file)])
    panels = [Panel(name, "self", weights, axis, axis) for name, weights in pipeline.attention(given.file).items()]
    report = AttentionReport(given.title, pipeline.name, panels, meta={"shape": shape})
    return Inspected(report, {"shape": shape})
