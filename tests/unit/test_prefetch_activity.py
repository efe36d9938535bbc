"""Which datasets count as being read."""

from tiercache.prefetch.activity import AGAIN_S, IDLE_S, PROOF_BYTES, PROOF_OPENS, Activity


def streaming(activity, name, now):
    """Enough of *name* was read for it to be due."""
    return [activity.used(name, now, opens=1) for _ in range(PROOF_OPENS)][-1]


def test_a_look_at_a_few_files_proves_nothing():
    activity = Activity()
    for _ in range(PROOF_OPENS - 1):
        assert not activity.used(b"d", 0.0, opens=1, nbytes=1000)
    assert activity.due(0.0) is None
    assert activity.used(b"d", 0.0, opens=1)
    assert activity.due(0.0) == b"d"


def test_much_of_one_large_file_is_proof_as_well():
    activity = Activity()
    assert not activity.used(b"d", 0.0, opens=1, nbytes=PROOF_BYTES - 1)
    assert activity.used(b"d", 0.0, nbytes=1)


def test_what_is_all_local_is_never_due():
    activity = Activity()
    assert not any(activity.used(b"d", float(now)) for now in range(1000))


def test_the_one_used_last_goes_first():
    activity = Activity()
    streaming(activity, b"a", 0.0)
    streaming(activity, b"b", 1.0)
    assert activity.due(2.0) == b"b"
    activity.used(b"a", 3.0)
    assert activity.due(3.0) == b"a"


def test_nobody_is_filled_for_who_has_gone():
    activity = Activity()
    streaming(activity, b"a", 0.0)
    assert activity.due(IDLE_S) == b"a"
    assert activity.due(IDLE_S + 0.1) is None
    activity.used(b"a", 2 * IDLE_S)
    assert activity.due(2 * IDLE_S) == b"a"


def test_what_is_over_is_due_again_after_a_pause_and_more_reads_that_missed():
    activity = Activity()
    streaming(activity, b"a", 0.0)
    activity.over(b"a", 0.0)
    assert activity.due(0.0) is None
    assert not streaming(activity, b"a", 1.0)  # of a tier that is full, for all of an epoch
    assert not activity.used(b"a", AGAIN_S - 0.1)
    assert activity.used(b"a", AGAIN_S)
    activity.over(b"a", AGAIN_S)
    assert not activity.used(b"a", 2 * AGAIN_S)
    activity.over(b"never seen", 0.0)


def test_what_is_remembered_is_bounded():
    activity = Activity()
    streaming(activity, b"first", 0.0)
    for number in range(10_000):
        activity.used(b"%d" % number, 0.0)
    assert activity.due(0.0) is None
