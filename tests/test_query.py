"""Questions and answers as bytes: what one side writes the other reads, and the shim reads the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chromafuse.errors import ProtocolError
from chromafuse.search import query, shim
from chromafuse.search.plan import Plain, Plan, Request, Send
from chromafuse.search.query import Answer, Filtered, Question

words = st.binary(max_size=12).map(lambda data: data.replace(b"\0", b"~"))
several = st.lists(words, max_size=4).map(tuple)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = st.integers(0, 1 << 53)
questions = st.builds(
    Question,
    st.builds(
        Request,
        st.sampled_from(["grep", "egrep", "fgrep", "rg"]),
        several,
        st.dictionaries(words.map(lambda name: name.replace(b"=", b"")), words, max_size=3),
        st.dictionaries(numbers, words, max_size=2),
    ),
    words,
    st.booleans(),
)
plans = st.builds(
    Plan,
    st.none(),
    several,
    several,
    st.booleans(),
    st.sampled_from([b"", b"-H"]),
    enumerate=st.one_of(st.none(), st.lists(words, min_size=1, max_size=3).map(tuple)),
)
answers = st.one_of(
    st.builds(Plain, texts),
    st.builds(Send, st.lists(st.tuples(numbers, words), max_size=3).map(tuple)),
    st.builds(
        Filtered,
        plans,
        st.lists(st.booleans(), max_size=4).map(tuple),
        numbers,
        texts,
        several,
        several,
        st.lists(st.tuples(numbers, words), max_size=3).map(tuple),
    ),
)


class Recorder(shim.Mounts):
    """A mount that keeps the question, and says nothing."""

    asked = b""

    def ask(self, directory: bytes, question: bytes, timeout: bytes) -> bytes:
        self.asked = question
        return b"plain\0heard\0end\0"


@given(questions)
def test_a_question_comes_back(question: Question) -> None:
    """What is asked is what is heard."""
    assert query.parse_question(query.encode_question(question)) == question


@given(answers)
def test_an_answer_comes_back(answer: Answer) -> None:
    """What is answered is what is heard."""
    assert query.parse_answer(query.encode_answer(answer)) == answer


@given(questions)
def test_the_shim_asks_in_the_same_bytes(question: Question) -> None:
    """The shim, which cannot import the encoding, writes it byte for byte."""
    request = question.request
    env = dict.fromkeys(shim.COUNTS, b"value")
    recorder = Recorder()
    search = shim.Search(request.tool, b"", list(request.words), {**env, b"HOME": b"/"}, recorder)
    search.mounted = [] if question.whole else [b"/"]
    for position, content in request.files.items():
        search.files += [b"%d" % position, content]
    with pytest.raises(shim.Plain, match="heard"):
        search.ask(question.where)
    expected = Request(request.tool, request.words, env, request.files)
    whole = Question(expected, question.where, question.whole)
    assert recorder.asked == query.encode_question(whole)


@given(answers)
def test_the_shim_reads_the_same_answer(answer: Answer) -> None:
    """Every part of an answer arrives in the shim as it was meant."""
    data = query.encode_answer(answer)
    if isinstance(answer, Plain):
        with pytest.raises(shim.Plain) as caught:
            shim.Answer(data)
        assert str(caught.value) == answer.reason
        return
    found = shim.Answer(data)
    if isinstance(answer, Send):
        assert found.named == [part for at, path in answer.words for part in (b"%d" % at, path)]
        return
    plan = answer.plan
    assert (found.options, found.operands) == ([*plan.options], [*plan.operands])
    assert found.kept == [b"1" if kept else b"0" for kept in answer.kept]
    assert (found.walks, found.prefix) == (plan.recursive, plan.prefix)
    assert found.lister == [*(plan.enumerate or ())]
    assert (found.pages, found.source) == (answer.pages, answer.source.encode())
    assert (found.candidates, found.binaries) == ([*answer.candidates], [*answer.binaries])
    flat = [part for inode, path in answer.directories for part in (b"%d" % inode, path)]
    assert found.directories == flat


@given(answers, st.data())
def test_a_piece_of_an_answer_is_none(answer: Answer, data: st.DataObject) -> None:
    """An answer that was cut short, or goes on, is refused on both sides."""
    whole = query.encode_answer(answer)
    piece = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ProtocolError):
        query.parse_answer(piece)
    with pytest.raises(ProtocolError):
        query.parse_answer(whole + b"more\0")
    if not piece.endswith(b"\0end\0"):
        with pytest.raises((shim.Plain, ValueError, RuntimeError, StopIteration)):
            shim.Answer(piece)


@given(st.binary(max_size=80))
def test_no_bytes_are_more_than_refused(data: bytes) -> None:
    """Whatever arrives is a question or a ProtocolError, and so with answers."""
    for parse in (query.parse_question, query.parse_answer):
        try:
            parse(data)
        except (ProtocolError, UnicodeDecodeError):
            continue


def test_fields_hold_no_nul() -> None:
    """A NUL would shift every field behind it."""
    with pytest.raises(ProtocolError):
        query.encode_question(Question(Request("grep", (b"a\0b",)), b"."))
    with pytest.raises(ProtocolError):
        query.encode_answer(Plain("a\0b"))
