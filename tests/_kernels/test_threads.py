"""Aggregating in forked children, in many threads, with no threads left, and at exit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import inputs
import numpy as np
import pytest
import torch
from torch import Tensor

import byzantium as bz
import byzantium.core.forks
from byzantium._kernels.threads import parallel_map
from byzantium.core.forks import fork_safe
from byzantium.core.lazy import cached_property

WIDE = 30_001  # columns that are worth several threads, ours and those of torch
LONG = 300  # seconds after which a process hangs

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
pytestmark = [
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def in_a_child(work: Callable[[], bool]) -> int:
    """The exit code of a forked child, 0 if the work returns True; a hung one dies of its alarm."""
    child = os.fork()
    if child == 0:
        signal.alarm(LONG)
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def meanwhile(work: Callable[[], object], threads: int = 2) -> Iterator[None]:
    """Threads that do some work over and over; they have begun, and must come to an end."""
    done, begun = threading.Event(), threading.Barrier(threads + 1)

    def loop() -> None:
        begun.wait()
        while not done.is_set():
            work()

    crew = [threading.Thread(target=loop, daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    begun.wait()
    try:
        yield
    finally:
        done.set()
        for thread in crew:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in crew), "a thread of the parent hangs"


def script(text: str, **environment: str) -> str:
    """What a script prints, in a process of its own that must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


RULES = (
    bz.Krum(f=5),
    bz.Median(),
    bz.Bucketing(s=2) >> bz.GeometricMedian(),
    bz.Bucketing(s=2) >> bz.MeaMed(f=2),
)


def aggregates(X: Tensor) -> list[Tensor]:
    return [rule(X, torch.Generator().manual_seed(1)) for rule in RULES]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Not by torch, which a forked child can use for small tensors only."""
    arrays = [
        [(x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy() for x in results]
        for results in (ours, theirs)
    ]
    return all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


# -- forks -------------------------------------------------------------------------------------


@forks
def test_a_forked_child_aggregates_too() -> None:
    X = inputs.gaussian(25, WIDE).float()
    expected, centred = aggregates(X), bz.CenteredClipping(1.0)
    expected.append(centred(X))
    centred.reset()
    assert in_a_child(lambda: same([*aggregates(X), centred(X)], expected)) == 0


@forks
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_children_forked_while_threads_aggregate_do_so_too(dtype: torch.dtype) -> None:
    """Numbers of two bytes are converted by torch, whose threads do not follow into a child."""
    X = inputs.gaussian(25, WIDE).to(dtype)
    expected = aggregates(X)
    with meanwhile(lambda: aggregates(X)):
        codes = [in_a_child(lambda: same(aggregates(X), expected)) for _ in range(8)]
    assert codes == [0] * 8
    assert same(aggregates(X), expected)


@forks
def test_a_forked_child_explains_mixes_and_attacks() -> None:
    X = inputs.gaussian(25, WIDE).float()
    mix, attack = bz.Bucketing(s=2), bz.ALittleIsEnough(z=1.0)

    def outcome() -> list[Tensor]:
        weights = [rule.explain(X, torch.Generator().manual_seed(1)).weights for rule in RULES]
        return [*weights, mix(X, torch.Generator().manual_seed(1)), attack(X, q=3)]

    expected = outcome()
    with meanwhile(outcome):
        assert in_a_child(lambda: same(outcome(), expected)) == 0


@forks
def test_a_child_of_a_child_aggregates_and_so_do_threads_of_a_child() -> None:
    X = inputs.gaussian(25, WIDE).half()
    expected = aggregates(X)

    def work() -> bool:
        with meanwhile(lambda: aggregates(X)):
            code = in_a_child(lambda: same(aggregates(X), expected))
        return code == 0 and same(aggregates(X), expected)

    assert in_a_child(work) == 0


def _aggregate_and_end(X: Tensor) -> None:
    aggregates(X)


@forks
def test_a_child_that_has_aggregated_ends_of_its_own() -> None:
    X = inputs.gaussian(25, WIDE).float()
    aggregates(X)
    child = multiprocessing.get_context("fork").Process(target=_aggregate_and_end, args=(X,))
    child.start()
    child.join(LONG)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0


@forks
def test_who_aggregates_may_fork_meanwhile() -> None:
    X = inputs.gaussian(25, WIDE).float()
    expected = aggregates(X)

    @fork_safe
    def fork() -> int:
        return in_a_child(lambda: same(aggregates(X), expected))

    with meanwhile(lambda: aggregates(X)):
        assert fork() == 0


@forks
def test_a_fork_does_not_wait_for_ever_for_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byzantium.core.forks, "PATIENCE", 0.1)
    X = inputs.gaussian(25, WIDE).float()
    expected, begun, forked = aggregates(X), threading.Event(), threading.Event()

    @fork_safe
    def wait() -> bool:
        begun.set()
        return forked.wait(LONG)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    begun.wait()
    assert in_a_child(lambda: same(aggregates(X), expected)) == 0
    assert same(aggregates(X), expected)
    forked.set()
    thread.join()


@forks
def test_errors_reach_the_caller_in_a_forked_child() -> None:
    def work() -> bool:
        with pytest.raises(ValueError, match="needs at least 2f \\+ 3 = 5 vectors, got 2"):
            bz.Krum(f=1)(torch.zeros(2, 3))
        return True

    assert in_a_child(work) == 0


@forks
def test_forks_while_large_gram_matrices_are_multiplied_stop_no_thread() -> None:
    """OpenBLAS stops its threads before a fork, and so for ever those who multiply meanwhile."""
    text = """
import os, threading
import torch, byzantium as bz

X = torch.randn(200, 50)
rule, done = bz.Bucketing(s=1) >> bz.Krum(f=20), threading.Event()

def loop():
    while not done.is_set():
        rule(X)

threads = [threading.Thread(target=loop) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        rule(X)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
print("all came back")
"""
    assert script(text) == "all came back"


@forks
def test_a_child_forked_during_the_very_first_aggregation_aggregates_too() -> None:
    """Another thread has just begun to import llvmlite, and has everything to compile."""
    text = """
import os, sys, threading
import torch, byzantium as bz

X = torch.tensor([[1.0], [2.0], [4.0]])
thread = threading.Thread(target=bz.Median(), args=(X,))
thread.start()
while "llvmlite" not in sys.modules:
    pass
child = os.fork()
result = bz.Median()(X).item()
if child == 0:
    os._exit(0 if result == 2 else 1)
thread.join()
print(result, os.waitpid(child, 0)[1])
"""
    assert script(text) == "2.0 0"


@forks
def test_a_child_forked_while_a_part_of_the_library_is_loaded_finds_it() -> None:
    text = """
import os, signal, threading, time
import byzantium as bz
import torch
thread = threading.Thread(target=lambda: bz.GeometricMedian)
thread.start()
time.sleep(0.01)  # it is importing
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if bz.GeometricMedian()(torch.tensor([[1.0], [2.0], [4.0]])).item() == 2 else 1)
thread.join()
print(os.waitpid(child, 0)[1])
"""
    assert {script(text) for _ in range(3)} == {"0"}


@forks
def test_children_forked_while_kernels_are_compiled_compile_their_own() -> None:
    """Each number of rows is another kernel."""
    text = """
import os, threading
import torch, byzantium as bz

X = torch.randn(30, 30_001, generator=torch.Generator().manual_seed(0))
expected, rule = X[:25].median(dim=0).values, bz.Median()
thread = threading.Thread(target=lambda: [rule(X[:n]) for n in range(13, 25)])
thread.start()
codes = []
while thread.is_alive() or not codes:
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(rule(X[:25]), expected) else 1)
    codes.append(os.waitpid(child, 0)[1])
print(set(codes))
"""
    assert script(text) == "{0}"


@forks
def test_a_child_forked_while_others_compile_their_own_code_aggregates_too() -> None:
    text = """
import os, threading
import llvmlite.binding as llvm, torch, byzantium as bz

X = torch.tensor([[1.0], [2.0], [4.0]])
bz.Median()(X)
done = threading.Event()

def loop():
    while not done.is_set():
        llvm.parse_assembly("define i64 @f(i64 %x) { ret i64 %x }").verify()

thread = threading.Thread(target=loop)
thread.start()
codes = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if bz.Median()(X.double()).item() == 2 else 1)  # another kernel
    codes.append(os.waitpid(child, 0)[1])
done.set()
thread.join()
print(codes)
"""
    assert script(text) == "[0, 0, 0, 0, 0]"


def test_computing_a_cached_property_keeps_no_other_instance_waiting() -> None:
    both = threading.Barrier(2)

    class Meeting:
        @cached_property
        def place(self) -> int:
            """Where two threads are at once."""
            return both.wait(LONG)

    meetings = Meeting(), Meeting()
    other = threading.Thread(target=lambda: meetings[0].place, daemon=True)
    other.start()
    first = meetings[1].place
    assert meetings[1].place is first  # there is nobody to meet a second time
    assert Meeting.place.__doc__ == "Where two threads are at once."
    other.join(LONG)


# -- threads -----------------------------------------------------------------------------------


def test_pieces_are_computed_in_any_number_of_threads_and_returned_in_order() -> None:
    pieces = [(k, k + 1) for k in range(50)]
    for threads in (1, 2, 7):
        assert parallel_map(lambda first, last: (first, last), pieces, threads) == pieces


def test_the_first_error_among_the_pieces_is_raised_and_the_helpers_go_on() -> None:
    def fail(first: int, last: int) -> int:
        if first >= 7:
            raise ArithmeticError(str(first))
        return first

    for _ in range(20):
        with pytest.raises(ArithmeticError, match=r"^7$"):
            parallel_map(fail, [(k, k + 1) for k in range(20)], 3)
    assert parallel_map(fail, [(k, k + 1) for k in range(7)], 3) == list(range(7))


def test_a_piece_may_be_spread_itself() -> None:
    """As when the garbage collector, in a helper, finds something that aggregates in its end."""

    def part(depth: int, last: int) -> int:
        return 1 if depth == 3 else sum(parallel_map(part, [(depth + 1, last)] * 4, 3))

    assert parallel_map(part, [(0, 0)], 3) == [4**3]


def test_a_system_without_a_thread_left_is_no_error() -> None:
    """There is no room for the stack of one."""
    text = """
import threading
import torch, byzantium as bz

X = torch.randn(25, 30_001)
torch.set_num_threads(2)
threading.stack_size(1 << 46)
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print(torch.equal(bz.Median()(X), X.median(dim=0).values))
"""
    assert script(text) == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has another OpenMP")
def test_the_main_thread_is_helped_by_the_threads_of_torch_and_others_by_ours() -> None:
    text = """
import threading
import torch, byzantium as bz

X = torch.randn(25, 30_001)
torch.set_num_threads(2)
ours = lambda: sum(thread.name == "byzantium" for thread in threading.enumerate())
same = torch.equal(bz.Median()(X), X.median(dim=0).values)
before = ours()
thread = threading.Thread(target=bz.Median(), args=(X,))
thread.start()
thread.join()
print(same, before, ours())
"""
    assert script(text) == "True 0 1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_that_is_the_first_to_import_it_aggregates() -> None:
    """Its parent's threads of OpenMP are not there, and nobody of ours has seen the fork."""
    text = """
import os
import torch

X = torch.randn(25, 1_000_001)
torch.set_num_threads(2)
expected = X.mul(2).median(dim=0).values
child = os.fork()
if not child:
    import byzantium as bz
    torch.set_num_threads(2)
    os._exit(0 if torch.equal(bz.Median()(X)[:9], expected[:9] / 2) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert script(text) == "0"


def test_a_signal_that_raises_gets_through_and_leaves_nothing_behind() -> None:
    text = """
import random, signal
import torch, byzantium as bz

X = torch.randn(25, 30_001)
torch.set_num_threads(2)
expected = X.median(dim=0).values
assert torch.equal(bz.Median()(X), expected)

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
random.seed(0)
interrupted = 0
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
        while True:
            found = bz.Median()(X)
            assert torch.equal(found, expected)
            if random.random() < 0.2:
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted > 20, torch.equal(bz.Median()(X), expected))
"""
    assert script(text) == "True True"


# -- exit --------------------------------------------------------------------------------------

EXIT = """
import atexit, threading
import torch, byzantium as bz

X = torch.randn(25, 30_001, generator=torch.Generator().manual_seed(0))
torch.set_num_threads(2)
rules = bz.Krum(f=5), bz.Median()
expected = [] if {cold} else [rule(X) for rule in rules]

def aggregate():
    results = [rule(X) for rule in rules]
    if all(map(torch.equal, results, expected)):
        print("aggregated", flush=True)

{when}
"""
WHEN = {
    "in an atexit handler": "atexit.register(aggregate)",
    "in a hook of threading": "threading._register_atexit(aggregate)",
    "in a thread that outlives the main thread": """
def late():
    threading.main_thread().join()
    aggregate()

threading.Thread(target=late).start()
""",
    "in a daemon thread that an atexit handler waits for": """
def late():
    exiting.wait()
    aggregate()

exiting, daemon = threading.Event(), threading.Thread(target=late, daemon=True)
daemon.start()
atexit.register(daemon.join)
atexit.register(exiting.set)
""",
    "when the last objects are destroyed": """
class Last:
    def __del__(self):
        aggregate()

last = Last()
""",
}


@pytest.mark.parametrize("when", WHEN)
def test_aggregating_at_exit_works(when: str) -> None:
    assert script(EXIT.format(cold=False, when=WHEN[when])) == "aggregated"


def test_even_the_first_aggregation_of_a_process_may_be_at_its_exit() -> None:
    assert script(EXIT.format(cold=True, when=WHEN["in an atexit handler"])) == "aggregated"
