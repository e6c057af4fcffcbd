"""The queue of pages to be asked for: clients in turn, batches within bounds, nothing lost or doubled."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from chromafuse.hub.wanted import Fetch, Wanted
from chromafuse.model.access import PUBLIC
from chromafuse.model.entry import TreeEntry


def fetch(number: int, client: object, size: int = 10) -> Fetch:
    """Return the fetch of a page."""
    entry = TreeEntry(f"{number}", PUBLIC, number.to_bytes(16, "big"), 1, size, 5)
    return Fetch(entry, client, ahead=False)


def numbers(batch: list[Fetch]) -> list[int]:
    """Return the pages of a batch."""
    return [int(found.entry.path) for found in batch]


def test_clients_take_turns() -> None:
    """A client that wants a hundred pages does not keep one waiting that wants two."""
    wanted = Wanted()
    for number in range(100):
        wanted.add(fetch(number, "greedy"))
    wanted.add(fetch(200, "modest"))
    wanted.add(fetch(201, "modest"))
    assert numbers(wanted.take(6, 10**9)) == [0, 200, 1, 201, 2, 3]


def test_a_batch_is_bounded_by_bytes_and_never_empty() -> None:
    """A page over the bound goes alone; others as long as they fit, in order."""
    wanted = Wanted()
    for number, size in enumerate([500, 40, 40, 40, 500]):
        wanted.add(fetch(number, None, size))
    taken = []
    while wanted:
        taken.append(numbers(wanted.take(10, 100)))
    assert taken == [[0], [1, 2], [3], [4]]


def test_a_page_taken_out_is_not_asked_for() -> None:
    """What is removed is gone once; a second removal says so, and the rest is unchanged."""
    wanted = Wanted()
    fetches = [fetch(number, number % 2) for number in range(4)]
    for one in fetches:
        wanted.add(one)
    assert wanted.remove(fetches[2])
    assert not wanted.remove(fetches[2])
    assert numbers(wanted.take(9, 10**9)) == [0, 1, 3]
    assert not wanted


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 60)), max_size=60)
)
def test_every_page_is_taken_once_in_the_order_of_its_client(
    steps: list[tuple[int, int, int]],
) -> None:
    """For any adds and takes, each client's pages come in their order, all of them, each once."""
    wanted = Wanted()
    model: dict[int, deque[int]] = {client: deque() for client in range(4)}

    def check(batch: list[Fetch]) -> None:
        for one in batch:
            assert isinstance(one.client, int)
            assert int(one.entry.path) == model[one.client].popleft()

    for number, (client, pages, size) in enumerate(steps):
        wanted.add(fetch(number, client, size))
        model[client].append(number)
        batch = wanted.take(pages, 100)
        assert len(batch) <= pages
        assert len(batch) < 2 or sum(one.entry.size for one in batch) <= 100
        check(batch)
    check(wanted.take(10**6, 10**9))
    assert not any(model.values())
    assert not wanted
