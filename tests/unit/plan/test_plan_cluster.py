"""Plans for many GPUs, against brute force, a simulated ring, and published figures."""

import math

import pytest

from regard.plan.cluster import Cluster, on_cluster
from regard.plan.plan import make_plan

PLAN = make_plan("gpt:gpt2", batch=4, target_length=1024)


def test_the_interval_between_checkpoints_loses_least_time():
    whole = on_cluster(PLAN, Cluster(gpus=512), 1e11)

    def lost(interval):  # writing, and half an interval for every failure
        return whole.checkpoint_seconds / interval + interval / 2 / whole.failure_seconds

    best = min((whole.interval * factor / 100 for factor in range(20, 500)), key=lost)
    assert whole.interval == pytest.approx(best)
    assert whole.lost == pytest.approx(lost(whole.interval) + whole.cluster.restart / whole.failure_seconds)


def test_failures_are_as_frequent_as_in_the_report_the_default_comes_from():
    whole = on_cluster(PLAN, Cluster(gpus=16384), 1e12)
    assert 54 * 86400 / whole.failure_seconds == pytest.approx(419)  # Llama 3: 419 in 54 days, one in three hours


@pytest.mark.parametrize("gpus", [1, 2, 5])
def test_bytes_sent_are_those_of_a_ring(gpus):
    """Each GPU sends a part of n / gpus numbers to the next, gpus - 1 times to sum it and as often to distribute it."""
    part, rounds = PLAN.parameters / gpus, gpus - 1
    replicated, sharded = on_cluster(PLAN, Cluster(gpus=gpus), 1e9).ways
    assert replicated.sent == pytest.approx(4 * part * rounds + 4 * part * rounds)
    assert sharded.sent == pytest.approx(2 * part * rounds + 2 * part * rounds + 4 * part * rounds)


def test_sharding_divides_the_state_and_nothing_else():
    one, many = (on_cluster(PLAN, Cluster(gpus=gpus), 1e9) for gpus in (1, 64))
    assert one.ways[0].memory["state"] == 16 * PLAN.parameters == 64 * many.ways[1].memory["state"]
    assert one.ways[1].memory["activations"] == many.ways[1].memory["activations"]


def test_time_follows_from_flops_and_a_slow_wire_is_waited_for():
    fast, slow = (on_cluster(PLAN, Cluster(gpus=8, wire=wire, restart=0), 1e9) for wire in (1e15, 1e6))
    way = fast.ways[0]
    assert way.step == pytest.approx(PLAN.training_flops / (0.4 * 989e12))
    assert fast.utilisation(way) == pytest.approx(0.4 * (1 - fast.lost))
    assert fast.days(way) == pytest.approx(math.ceil(1e9 / (8 * 4096)) * way.step / (1 - fast.lost) / 86400)
    assert slow.ways[0].step == slow.ways[0].talking > fast.ways[0].step
