"""Elastic workers of the Ray integration without Ray: the members of the next generation, and the coordinator's
replies."""

import asyncio
import random

import pytest
from farandole.integrations.ranks.generations import Generations
from farandole.integrations.ray import RayExecutor
from farandole.integrations.ray.coordinator import Coordinator
from farandole.integrations.ray.elastic_executor import ElasticRayExecutor
from farandole.integrations.ray.ray_logger import _LogBuffer
from farandole.integrations.ray.worker import Facts


def begun(fewest=1, most=3, workers="aab", resets=0):
    """Workers 0, 1, 2... on the nodes of these names, in their first generation."""
    one = Generations(fewest, most, resets)
    for worker, node in enumerate(workers):
        one.start(worker, node)
    for worker in range(len(workers)):
        assert one.next() is None
        one.request(worker)
    assert one.next() == sorted(
        range(len(workers)), key=lambda worker: list(dict.fromkeys(workers)).index(workers[worker])
    )
    return one


def test_the_first_generation_waits_for_all_workers_and_groups_nodes():
    assert begun(workers="abab", most=4).members == [0, 2, 1, 3]


def test_remaining_workers_continue_and_a_successor_joins_later():
    one = begun()
    one.request(0)
    assert one.awaited() == [1, 2] and one.next() is None
    one.end(1, False)
    one.request(2)
    assert one.next() == [0, 2] and one.over is None and not one.has_newcomers()
    one.start(3, "a")
    one.request(3)
    assert one.has_newcomers() and one.next() is None and one.awaited() == [0, 2]
    one.request(2)
    one.request(0)
    assert one.next() == [0, 3, 2] and not one.has_newcomers()  # node by node, and the first worker stays first


def test_rank_0_is_the_worker_with_the_oldest_state():
    one = begun(workers="abc")
    one.start(3, "c")
    one.request(3)
    one.end(0, False)
    one.request(2)
    one.request(1)
    assert one.next() == [1, 2, 3]


def test_too_few_workers_wait_until_there_are_enough():
    one = begun(fewest=2, workers="ab")
    one.end(0, False)
    one.request(1)
    assert one.next() is None and one.awaited() == [] and one.is_due()
    one.start(2, "b")
    one.request(2)
    assert one.next() == [1, 2] and not one.is_due()


def test_surplus_workers_wait_without_a_notification():
    one = begun(most=3)
    one.start(3, "a")
    one.request(3)
    assert not one.has_newcomers() and one.next() is None
    one.end(2, False)
    assert one.has_newcomers()


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda one: [one.end(worker, False) for worker in range(3)], "no rank is left that holds the state"),
        (lambda one: (one.end(0, True), one.end(1, False)), "a rank was lost when others had finished"),
    ],
)
def test_no_generation_follows_fatal_endings(happens, why):
    one = begun()
    one.start(3, "b")
    one.request(3)
    happens(one)
    assert one.over == why and one.next() is None


def test_a_failure_before_the_first_generation_ends_the_job():
    one = Generations(1, 2)
    one.start(0, "a")
    one.start(1, "a")
    one.request(0)
    one.end(1, False)
    assert "failed before all had met" in one.over and one.next() is None
    one = begun()
    one.start(3, "a")
    one.end(3, False)
    assert one.over is None


def test_no_worker_joins_after_one_has_finished():
    one = begun()
    one.start(3, "a")
    one.request(3)
    for worker in range(3):
        one.end(worker, True)
    assert one.next() is None and one.over is None and one.members == [0, 1, 2]


def test_resets_are_counted():
    one = begun(resets=1, workers="ab")
    for again in (True, False):
        one.request(0)
        one.request(1)
        assert (one.next() is not None) == again
    assert one.over == "the limit of 1 resets is reached"


def test_newcomers_do_not_interrupt_a_job_at_its_limit_of_resets():
    one = begun(resets=1, workers="ab")
    one.end(1, False)
    one.request(0)
    assert one.next() == [0]
    one.start(2, "b")
    one.request(2)
    assert not one.has_newcomers() and one.over is None


def test_a_newcomer_that_returns_before_it_took_part_does_not_end_the_job():
    one = begun()
    one.start(3, "a")
    one.end(3, True)
    assert not one.finished
    one.end(0, True)
    assert one.finished


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_member_that_has_not_received_the_state_is_new_again(lost_first):
    one = begun(workers="abc")
    one.end(2, False)
    one.start(3, "c")
    for worker in (0, 1, 3):
        one.request(worker)
    assert one.next() == [0, 1, 3]
    if lost_first:
        one.end(0, False)
    one.request(3, has_state=False)
    if not lost_first:
        one.end(0, False)
    assert one.members == [1] and one.over is None
    one.request(1)
    assert one.next() == [1, 3]
    one.request(3, has_state=False)
    one.end(1, False)
    assert one.over == "no rank is left that holds the state"


def test_workers_of_the_first_generation_hold_the_state_of_the_beginning():
    one = begun(workers="ab")
    one.end(0, False)
    one.request(1, has_state=False)
    assert one.over is None and one.next() == [1]


@pytest.mark.parametrize("seed", range(30))
def test_random_events_keep_members_first_and_unique(seed):
    dice = random.Random(seed)
    print("seed", seed)
    one, count, held = Generations(2, 5), 0, set()
    running = set()
    for _ in range(300):
        what = dice.random()
        if what < 0.2 and len(running) < 5:
            one.start(count, dice.choice("ab"))
            running.add(count)
            count += 1
        elif what < 0.3 and len(running & held) > 1 and running:
            lost = dice.choice(sorted(running))
            if one.number:
                running.discard(lost)
                one.end(lost, False)
        elif running:
            one.request(dice.choice(sorted(running)))
        ranks = one.next()
        if ranks:
            assert len(ranks) == len(set(ranks)) and 2 <= len(ranks) <= 5 and set(ranks) <= running
            assert not held & running or ranks[0] in held, (ranks, held)
            held = set(ranks)
    assert one.over is None and one.number > 3


# ---- The coordinator -------------------------------------------------------------------------------------------------


def facts(node, host):
    return Facts(node, f"name-{node}", "10.0.0.7", 1, host, ())


def rendezvous_choices(worker):
    return (f"unix:{worker}", f"tcp:{worker}")


def test_each_generation_has_one_rendezvous_and_key_and_reports_newcomers():
    async def play():
        one = Coordinator(1, 3, 0, 60, 60)
        await one.start(0, facts("a", "x"))
        await one.start(1, facts("a", "x"))
        first = await asyncio.gather(one.join(0, rendezvous_choices(0)), one.join(1, rendezvous_choices(1)))
        assert [word for word, *_ in first] == ["world"] * 2 and {place for _, _, place, _ in first} == {"unix:0"}
        assert [(member.rank, member.size, member.local_rank) for _, member, _, _ in first] == [(0, 2, 0), (1, 2, 1)]
        changes = asyncio.ensure_future(one.membership_changes())
        await one.start(2, facts("b", "y"))
        joins = [asyncio.ensure_future(one.join(2, rendezvous_choices(2)))]
        assert await changes == 1
        joins += [asyncio.ensure_future(one.join(worker, rendezvous_choices(worker))) for worker in (1, 0)]
        second = await asyncio.gather(*joins)
        assert {place for _, _, place, _ in second} == {"tcp:0"}  # not all are on one host
        keys = {key.text for *_, key in first} | {key.text for *_, key in second}
        assert len(keys) == 2 and await one.ranks() == [0, 1, 2]
        assert await one.end(1, False) == (2, 1, None)

    asyncio.run(play())


def test_late_workers_are_returned_and_too_few_workers_end_the_job():
    async def play():
        one = Coordinator(2, 2, 0, 0.05, 60)
        await one.start(0, facts("a", "x"))
        await one.start(1, facts("a", "x"))
        await asyncio.gather(one.join(0, rendezvous_choices(0)), one.join(1, rendezvous_choices(1)))
        waiting = asyncio.ensure_future(one.join(0, rendezvous_choices(0)))
        assert await one.late() == [1]
        assert await one.end(1, False) == (1, 1, None)
        assert await waiting == ("end", "there were fewer than 2 workers for 0.05 s")
        assert await one.end(0, False) == (1, 0, "there were fewer than 2 workers for 0.05 s")

    asyncio.run(play())


def test_a_worker_missing_at_the_first_generation_ends_the_job_after_the_start_timeout():
    async def play():
        one = Coordinator(1, 2, 0, 60, 0.05)
        await one.start(0, facts("a", "x"))
        await one.start(1, facts("a", "x"))
        assert await one.join(0, rendezvous_choices(0)) == (
            "end",
            "1 of the workers did not come to init() within 0.05 s",
        )
        assert await one.late() == [1]

    asyncio.run(play())


def test_waiting_workers_end_when_others_have_finished():
    async def play():
        one = Coordinator(1, 2, 0, 60, 60)
        await one.start(0, facts("a", "x"))
        await one.join(0, rendezvous_choices(0))
        await one.start(1, facts("a", "x"))
        waiting = asyncio.ensure_future(one.join(1, rendezvous_choices(1)))
        await asyncio.sleep(0)
        assert await one.end(0, True) == (1, 0, None) and await waiting == ("end", "others have finished")
        assert await one.end(1, False) == (0, None, None)

    asyncio.run(play())


# ---- Callbacks -------------------------------------------------------------------------------------------------------


def test_logged_values_are_delivered_in_order():
    async def play():
        buffer = _LogBuffer()
        values = asyncio.ensure_future(buffer.wait())
        await buffer.append("first", 1, "b")
        waiting = asyncio.ensure_future(buffer.wait_for("first", 3))
        await asyncio.sleep(0)
        assert not values.done() and not waiting.done()
        await buffer.append("first", 0, "a")
        assert await values == ["a", "b"] and not waiting.done()
        await buffer.append("other", 0, "x")  # another rank has become rank 0
        await buffer.append("first", 2, "c")
        await waiting
        values = asyncio.ensure_future(buffer.wait())
        assert await buffer.rest() + await values == ["x", "c"]

    asyncio.run(play())


def test_min_workers_or_max_workers_make_an_executor_elastic():
    assert (
        isinstance(RayExecutor(min_workers=2), ElasticRayExecutor) and type(RayExecutor(num_workers=2)) is RayExecutor
    )
    assert isinstance(RayExecutor(None, None, None, 1, 1, False, None, True, None, 4), ElasticRayExecutor)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        RayExecutor(max_workers=2).run(print)
    for wrong in (lambda one: one.run_remote(print), lambda one: one.execute_single(print)):
        with pytest.raises(NotImplementedError, match=r"call (run|execute)\(\)"):
            wrong(RayExecutor(max_workers=2))
