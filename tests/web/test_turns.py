"""Turns at the database: first come, first served, and nobody waits longer than is said."""

from __future__ import annotations

import asyncio

from engine.web.limits import WAITING_MOST, Turns


def test_turns_are_given_in_the_order_of_asking() -> None:
    async def story() -> list[int]:
        turns = Turns(1, 60.0)
        served: list[int] = []

        async def ask(number: int) -> None:
            assert await turns.take()
            served.append(number)
            await asyncio.sleep(0)
            turns.give()

        assert await turns.take()
        asking = [asyncio.create_task(ask(number)) for number in range(20)]
        await asyncio.sleep(0)
        turns.give()
        await asyncio.gather(*asking)
        assert await turns.take()  # it came back
        return served

    assert asyncio.run(story()) == list(range(20))


def test_who_waits_in_vain_is_told_and_costs_no_turn() -> None:
    async def story() -> None:
        turns = Turns(1, 0.01)
        assert await turns.take()
        assert await asyncio.gather(*(turns.take() for _ in range(WAITING_MOST + 5))) == [False] * (WAITING_MOST + 5)
        turns.give()
        assert await turns.take()
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        waiting.cancel()  # its client is gone
        await asyncio.gather(waiting, return_exceptions=True)
        turns.give()
        assert await turns.take()
        assert not await turns.take()

    asyncio.run(story())


def test_a_turn_that_comes_as_its_waiter_is_cancelled_goes_on_to_the_next() -> None:
    async def story() -> None:
        turns = Turns(1, 60.0)
        assert await turns.take()
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        turns.give()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await asyncio.wait_for(turns.take(), 60)

    asyncio.run(story())
