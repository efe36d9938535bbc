"""One place retries: within attempts, deadline and budget, and from the last good byte on."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import pytest
import trio

from tiercache.config import TransferConfig
from tiercache.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginReplyError,
    OriginThrottledError,
    OriginUnavailableError,
)
from tiercache.origin.protocol import FirstAttempt, RangedGet
from tiercache.origin.retry import GAIN_MIN, WARN_INTERVAL_S, RetryingOrigin
from tiercache.origin.s3_reply import Refusal, error_of
from tiercache.origin.s3_xml import ErrorBody
from tiercache.origin.wrapper import OriginWrapper
from tiercache.testing.data import check
from tiercache.testing.faulty import FaultyOrigin, SlowOrigin
from tiercache.testing.memory import Call, MemoryOrigin

SIZE = 1_000_000
CONFIG = TransferConfig(attempts=4, backoff_base_s=1.0, backoff_max_s=3.0, deadline_s=100.0)
RESET = OriginUnavailableError("reset")
pytestmark = pytest.mark.allow_warnings


class Longest(Random):
    """Jitter that always takes the longest wait."""

    def uniform(self, a, b):
        return b


@pytest.fixture
def memory():
    memory = MemoryOrigin()
    memory.put_pattern(b"k", SIZE)
    return memory


@pytest.fixture
def faulty(memory):
    return FaultyOrigin(memory)


def retrying(inner, random=None, **changes):
    return RetryingOrigin(inner, replace(CONFIG, **changes), random or Longest())


async def get(origin, key=b"k", start=0, size=SIZE, progress=None, etag=None):
    into = memoryview(bytearray(size))
    etag = etag or origin.inner.inner.info(key).etag
    await origin.get_range(key, etag, start, into, progress)
    return into


async def test_waits_double_up_to_their_ceiling(faulty, autojump_clock):
    faulty.fail("head", RESET, times=3)
    origin = retrying(faulty)
    started = trio.current_time()
    assert (await origin.head(b"k")).size == SIZE
    assert trio.current_time() - started == pytest.approx(1 + 2 + 3)
    assert (origin.requests, origin.retries, origin.failures) == (1, 3, 0)


async def test_jitter_takes_any_part_of_the_interval(faulty, autojump_clock):
    faulty.fail("head", RESET, times=3)
    random = Random(7)
    expected = sum(random.uniform(0, ceiling) for ceiling in (1, 2, 3))
    started = trio.current_time()
    await retrying(faulty, Random(7)).head(b"k")
    assert trio.current_time() - started == pytest.approx(expected)


async def test_gives_up_after_the_last_attempt_with_the_origins_own_error(faulty, autojump_clock):
    faulty.fail("list", RESET, times=None)
    origin = retrying(faulty)
    with pytest.raises(OriginUnavailableError) as caught:
        await origin.list(b"")
    assert caught.value is RESET
    assert faulty.calls["list"] == 4
    assert (origin.retries, origin.failures) == (3, 1)


@pytest.mark.parametrize("error", [ObjectNotFoundError, ObjectChangedError, AccessDeniedError])
async def test_answers_are_not_questioned(faulty, autojump_clock, error):
    faulty.fail("head", error("no"))
    origin = retrying(faulty)
    with pytest.raises(error):
        await origin.head(b"k")
    assert faulty.calls["head"] == 1
    assert (origin.retries, origin.failures) == (0, 0)


async def test_a_reply_not_to_be_believed_is_retried(faulty, autojump_clock):
    faulty.fail("get_range", OriginReplyError("wrong range"), times=2)
    check(await get(retrying(faulty)))


async def test_retry_after_is_honoured_on_top_of_jitter(faulty, autojump_clock):
    faulty.fail("head", OriginUnavailableError("slow down", retry_after_s=10))
    started = trio.current_time()
    await retrying(faulty).head(b"k")
    assert trio.current_time() - started == pytest.approx(10 + 1)


@pytest.mark.parametrize("asked", [86400.0, float("inf")])
async def test_retry_after_is_bounded_by_a_fair_share_of_the_deadline(
    faulty, autojump_clock, asked
):
    faulty.fail("head", OriginUnavailableError("slow down", retry_after_s=asked))
    started = trio.current_time()
    await retrying(faulty).head(b"k")
    assert trio.current_time() - started == pytest.approx(100 / 4 + 1)


async def test_no_attempt_starts_after_the_deadline(faulty, autojump_clock):
    faulty.fail("head", RESET, times=None)
    origin = retrying(faulty, deadline_s=3.5)
    with pytest.raises(OriginUnavailableError):
        await origin.head(b"k")
    assert faulty.calls["head"] == 3  # at 0, 1 and 3 seconds; the next would be at 6


async def test_the_deadline_ends_a_running_attempt(memory, autojump_clock):
    origin = retrying(SlowOrigin(memory, latency_s=1000))
    started = trio.current_time()
    with pytest.raises(OriginUnavailableError, match="deadline"):
        await origin.head(b"k")
    assert trio.current_time() - started == pytest.approx(100)


async def test_cancelling_the_caller_is_not_a_failure(memory, autojump_clock):
    origin = retrying(SlowOrigin(memory, latency_s=50))
    with trio.move_on_after(1) as scope:
        await origin.head(b"k")
    assert scope.cancelled_caught
    assert (origin.retries, origin.failures) == (0, 0)


async def test_a_read_goes_on_behind_its_last_good_byte(faulty, memory, autojump_clock):
    faulty.fail("get_range", RESET, after_bytes=300_000)
    faulty.fail("get_range", RESET, after_bytes=1)
    seen = []
    check(await get(retrying(faulty), start=0, progress=seen.append))
    gets = [call for call in memory.calls if call.operation == "get_range"]
    assert gets == [
        Call("get_range", b"k", 0, 300_000),
        Call("get_range", b"k", 300_000, 1),
        Call("get_range", b"k", 300_001, SIZE - 300_001),
    ]
    assert seen == sorted(set(seen))
    assert seen[-1] == SIZE


async def test_progress_never_falls_back_though_a_store_repeats_itself(memory, autojump_clock):
    class Repeating(OriginWrapper):
        async def get_range(self, key, etag, start, into, progress=None):
            def twice(filled):
                progress(filled)
                progress(filled // 2)

            await self.inner.get_range(key, etag, start, into, twice)

    faulty = FaultyOrigin(memory)
    faulty.fail("get_range", RESET, after_bytes=300_000)
    seen = []
    origin = RetryingOrigin(Repeating(faulty), CONFIG, Longest())
    into = memoryview(bytearray(SIZE))
    await origin.get_range(b"k", memory.info(b"k").etag, 0, into, seen.append)
    check(into)
    assert seen == sorted(set(seen))


async def test_a_shaky_link_that_moves_data_is_not_given_up(faulty, autojump_clock):
    faulty.fail("get_range", RESET, times=15, after_bytes=GAIN_MIN)
    origin = retrying(faulty)
    check(await get(origin))
    assert origin.retries == 15


async def test_a_trickle_is_given_up(faulty, autojump_clock):
    faulty.fail("get_range", RESET, times=None, after_bytes=100)
    origin = retrying(faulty)
    with pytest.raises(OriginUnavailableError):
        await get(origin)
    assert faulty.calls["get_range"] == 4


async def test_an_object_that_changed_between_attempts_is_never_mixed(
    faulty, memory, autojump_clock
):
    etag = memory.info(b"k").etag
    faulty.fail("get_range", RESET, after_bytes=300_000)

    def overwrite(_filled):
        memory.put_pattern(b"k", SIZE, seed=1)

    into = memoryview(bytearray(SIZE))
    with pytest.raises(ObjectChangedError):
        await retrying(faulty).get_range(b"k", etag, 0, into, overwrite)
    assert bytes(into[300_000:]) == bytes(SIZE - 300_000)


async def test_the_callers_own_failure_is_not_retried(faulty, autojump_clock):
    def refuse(_filled):
        raise OriginUnavailableError("not the origin's fault")

    with pytest.raises(OriginUnavailableError, match="not the origin"):
        await get(retrying(faulty), progress=refuse)
    assert faulty.calls["get_range"] == 1


async def test_the_budget_ties_retries_to_requests(faulty, autojump_clock):
    faulty.fail("head", RESET, times=None)
    origin = retrying(faulty, connections=1, retry_budget=0.5)  # a burst of 4
    for _ in range(200):
        with pytest.raises(OriginUnavailableError):
            await origin.head(b"k")
    assert 95 <= origin.retries <= 105
    assert origin.failures == 200


async def test_an_outage_is_one_warning_per_interval(faulty, autojump_clock, caplog):
    faulty.fail("head", RESET, times=None)
    origin = retrying(faulty, attempts=1)
    caplog.set_level(logging.INFO, "tiercache")
    for _ in range(50):
        with pytest.raises(OriginUnavailableError):
            await origin.head(b"k")
    await trio.sleep(WARN_INTERVAL_S)
    with pytest.raises(OriginUnavailableError):
        await origin.head(b"k")
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "49 like warnings" in warnings[1]


async def test_a_retry_that_helps_warns_nobody(faulty, autojump_clock, caplog):
    faulty.fail("head", RESET, times=3)
    caplog.set_level(logging.INFO, "tiercache")
    await retrying(faulty).head(b"k")
    assert caplog.records == []


async def test_the_rest_is_the_inner_origins(memory):
    origin = RetryingOrigin(memory, CONFIG)
    assert (origin.name, origin.identity) == (memory.name, memory.identity)
    assert origin.describe() == memory.describe()
    await origin.check()
    await origin.aclose()
    assert memory.closed


async def test_every_failed_attempt_is_told_of_with_its_kind(faulty, autojump_clock):
    told = []
    origin = retrying(faulty)
    origin.on_failed(told.append)
    throttled = OriginThrottledError("503 SlowDown")
    faulty.fail("head", throttled)
    faulty.fail("head", RESET)
    faulty.fail("head", ObjectNotFoundError("no"))
    with pytest.raises(ObjectNotFoundError):
        await origin.head(b"k")
    assert told == [throttled, RESET]


@pytest.mark.parametrize(
    ("status", "code", "throttled"),
    [
        (503, "SlowDown", True),
        (503, "", True),
        (429, "", True),
        (400, "SlowDown", True),
        (500, "InternalError", False),
        (408, "", False),
        (400, "RequestTimeout", False),
    ],
)
def test_throttling_is_told_from_other_trouble(status, code, throttled):
    error = error_of(Refusal(status, {"retry-after": "3"}, ErrorBody(code)))
    assert isinstance(error, OriginUnavailableError)
    assert isinstance(error, OriginThrottledError) is throttled
    assert error.retry_after_s == 3


async def test_a_first_attempt_made_elsewhere_counts_like_one_made_here(memory, autojump_clock):
    origin = retrying(FaultyOrigin(memory))
    told = []
    origin.on_failed(told.append)
    into = memoryview(bytearray(SIZE))
    before = trio.current_time()
    get = RangedGet(b"k", memory.info(b"k").etag, 0, into)
    await origin.go_on(get, FirstAttempt(before, 0, OriginThrottledError("503")))
    check(into)
    assert trio.current_time() - before == pytest.approx(1.0)
    assert (origin.requests, origin.retries, origin.failures) == (1, 1, 0)
    assert [type(error) for error in told] == [OriginThrottledError]


async def test_a_first_attempt_made_elsewhere_takes_its_part_of_the_deadline(
    memory, autojump_clock
):
    origin = retrying(FaultyOrigin(memory), deadline_s=60.0)
    await trio.sleep(100)
    get = RangedGet(b"k", memory.info(b"k").etag, 0, memoryview(bytearray(9)))
    late = OriginUnavailableError("no answer within the deadline")
    with pytest.raises(OriginUnavailableError, match="deadline"):
        await origin.go_on(get, FirstAttempt(trio.current_time() - 60, 0, late))
    assert not memory.calls


async def test_without_attempts_left_the_first_failure_is_the_last(memory):
    origin = retrying(FaultyOrigin(memory), attempts=1)
    get = RangedGet(b"k", memory.info(b"k").etag, 0, memoryview(bytearray(9)))
    with pytest.raises(OriginThrottledError):
        await origin.go_on(get, FirstAttempt(trio.current_time(), 0, OriginThrottledError("x")))
    assert not memory.calls


async def test_a_first_attempt_made_elsewhere_is_gone_on_from_where_it_ended(memory):
    origin, told = retrying(FaultyOrigin(memory)), []
    into = memoryview(bytearray(SIZE))
    get = RangedGet(b"k", memory.info(b"k").etag, 0, into, told.append)
    await origin.go_on(get, FirstAttempt(trio.current_time(), SIZE // 3, None))
    assert bytes(into[: SIZE // 3]) == bytes(SIZE // 3), "nobody writes what was there"
    whole = memoryview(bytearray(SIZE))
    await origin.get_range(b"k", get.etag, 0, whole)
    assert into[SIZE // 3 :] == whole[SIZE // 3 :]
    assert told[0] > SIZE // 3
    assert told[-1] == SIZE
