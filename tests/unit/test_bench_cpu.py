"""Call chains as `perf script` prints them, and the part of the work each belongs to."""

import pytest

from bench.cpu import Sample, parse, part_of, shares

SCRIPT = """\
python  3480
\tffffffff82203249 _raw_spin_unlock_irqrestore ([kernel.kallsyms])
\tffffffff8201352e tcp_recvmsg ([kernel.kallsyms])
\t          10a974 __libc_recv (/usr/lib/x86_64-linux-gnu/libc.so.6)

Trio thread 2  3510
\t          1b9c2b aes_gcm (/usr/lib/libcrypto.so.3)
\t          1b9c2b _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)

tiercache-recei  3514
\t          1b9c2b mystery (/usr/lib/unheard-of.so)
"""


def test_samples_are_read_with_thread_and_frames():
    first, second, third = parse(SCRIPT.splitlines())
    assert [first.thread, second.thread] == ["python", "Trio thread 2"]
    assert third.thread == "tiercache-recei"
    assert first.frames[1] == "tcp_recvmsg ([kernel.kallsyms])"
    assert len(first.frames) == 3


def test_every_sample_has_one_part():
    samples = list(parse(SCRIPT.splitlines()))
    assert [part_of(sample) for sample in samples] == ["receive", "tls", "other"]
    found = shares(samples)
    assert sum(found.values()) == pytest.approx(1)
    assert found["receive"] == pytest.approx(1 / 3)
    assert found["hash"] == 0


def test_a_system_call_counts_before_the_library_that_made_it():
    frames = ("tcp_recvmsg (k)", "BIO_read (libcrypto.so.3)", "SSL_read (libssl.so.3)")
    assert part_of(Sample("tiercache-recei", frames)) == "receive"
