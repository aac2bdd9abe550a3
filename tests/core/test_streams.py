"""Random streams: named, repeatable, and none of them computable from another."""

import hashlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from svysynth.core.streams import Streams
from svysynth.models.jax_keys import jax_key, threefry, wrapped

jax.config.update("jax_enable_x64", True)

SECRET = Streams(int.from_bytes(hashlib.sha512(b"a secret of 256 bits").digest()[:32], "big"))
MASK, WIDE = 2**32 - 1, 2**128 - 1
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645


class SeedMixing:
    """NumPy's SeedSequence, forwards and backwards: every step of it can be undone by who knows the spawn key."""

    def __init__(self, calls):
        self.constant = 0x43B0D7E5 * pow(0x931E8875, calls, 2**32) & MASK

    def hashed(self, word):
        word ^= self.constant
        self.constant = self.constant * 0x931E8875 & MASK
        word = word * self.constant & MASK
        return word ^ word >> 16

    def mixed(self, pool, words):
        for word in words:
            for place in range(4):
                value = (0xCA01F9DD * pool[place] - 0x4973F715 * self.hashed(word)) & MASK
                pool[place] = value ^ value >> 16
        return pool

    def unmixed(self, pool, words):
        added = [[self.hashed(word) for _ in range(4)] for word in words]
        for row in reversed(added):
            for place in range(4):
                value = pool[place] ^ pool[place] >> 16
                pool[place] = (value + 0x4973F715 * row[place]) * pow(0xCA01F9DD, -1, 2**32) & MASK
        return pool


def output_of(pool):
    found, constant = [], 0x8B51F9DD
    for word in pool:
        value = word ^ constant
        constant = constant * 0x58F38DED & MASK
        value = value * constant & MASK
        found.append(value ^ value >> 16)
    return found


def pool_of(output):
    found, constant = [], 0x8B51F9DD
    for word in output:
        following = constant * 0x58F38DED & MASK
        value = (word ^ word >> 16) * pow(following, -1, 2**32) & MASK
        found.append(value ^ constant)
        constant = following
    return found


def spawn_key(name, index):
    return [*np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], np.uint32).tolist(), index]


def seed_words(generator):
    """Four of the words that a generator was made from, out of its state."""
    state = generator.bit_generator.state
    if state["bit_generator"] == "Philox":
        return np.asarray(state["state"]["key"]).view(np.uint32).tolist()
    inner = state["state"]
    start = ((inner["state"] - inner["inc"]) * pow(MULTIPLIER, -1, 2**128) - inner["inc"]) & WIDE
    return [start >> shift & MASK for shift in (64, 96, 0, 32)]


def other_key(words, known, wanted):
    """What the seed words of one stream say of another's, where both come from one SeedSequence of 256 bits."""
    calls = 4 + 12 + 4 * 4
    pool = SeedMixing(calls).unmixed(pool_of(words), spawn_key(*known))
    return output_of(SeedMixing(calls).mixed(pool, spawn_key(*wanted)))


def test_the_attack_recovers_one_stream_of_a_seed_sequence_from_another():
    def generator(name):
        sequence = np.random.SeedSequence(SECRET.entropy, spawn_key=spawn_key(name, 0))
        return np.random.Generator(np.random.PCG64DXSM(sequence))

    found = other_key(seed_words(generator("synthesis")), ("synthesis", 0), ("fit", 0))
    assert found == seed_words(generator("fit"))


def test_no_stream_can_be_computed_from_the_state_of_another():
    found = other_key(seed_words(SECRET.generator("synthesis")), ("synthesis", 0), ("fit", 0))
    assert found[:2] != SECRET.key_data("fit")[:2].tolist()
    assert found != seed_words(SECRET.generator("fit"))


def test_a_generator_does_not_give_away_the_jax_key_of_its_name():
    words = seed_words(SECRET.generator("fit"))
    assert not set(words) & set(SECRET.key_data("fit").tolist())


def test_a_generator_does_not_give_away_the_part_of_its_name():
    seen = SECRET.generator("replicate", 3).bytes(32)
    assert SECRET.split("replicate", 3).entropy not in (int.from_bytes(seen, "little"), int.from_bytes(seen, "big"))


def test_the_entropy_is_not_shown():
    assert str(SECRET.entropy) not in repr(SECRET)


def test_keys_have_128_bits():
    assert SECRET.key_data("fit").nbytes == 16
    assert SECRET.generator("fit").bit_generator.state["state"]["key"].nbytes == 16
    assert jax.random.key_data(jax_key(SECRET, "fit")).nbytes == 16
    assert 2**200 < SECRET.split("part").entropy < 2**256


def test_fresh_streams_have_256_bits_of_the_system():
    found = [Streams.from_system().entropy for _ in range(50)]
    assert len(set(found)) == 50
    assert all(one < 2**256 for one in found)
    assert max(found) > 2**250


def test_streams_of_other_names_indices_and_entropy_differ():
    streams = [Streams.seeded(1), Streams.seeded(2), Streams.seeded(10), Streams.seeded(1).split("a")]
    names = [("a", 0), ("a", 1), ("a", 256), ("a\0", 0), ("\0a", 0), ("", 0), ("a1", 0), ("b", 0)]
    keys = {one.key_data(*name).tobytes() for one in streams for name in names}
    starts = {one.generator(*name).bytes(16) for one in streams for name in names}
    parts = {one.split(*name).entropy for one in streams for name in names}
    assert len(keys) == len(starts) == len(parts) == len(streams) * len(names)


def test_a_stream_is_the_same_whenever_it_is_asked_for():
    first = [SECRET.generator("a", 1).random(), *SECRET.key_data("a", 1), *SECRET.words("a", 1, 6)]
    SECRET.generator("b").random(100)
    assert first == [SECRET.generator("a", 1).random(), *SECRET.key_data("a", 1), *SECRET.words("a", 1, 6)]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ("00000000 00000000 00000000 00000000", None, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        ("ffffffff ffffffff ffffffff ffffffff", None, "2a881696 57012287 f6c7446e a16a6732"),
        (
            "a4093822 299f31d0 082efa98 ec4e6c89",
            "243f6a88 85a308d3 13198a2e 03707344",
            "59cd1dbb b8879579 86b5d00c ac8b6d84",
        ),
    ],
)
def test_threefry_gives_the_known_answers_of_random123(key, counter, expected):
    key, counter, expected = ([int(word, 16) for word in text.split()] for text in (key, counter or key, expected))
    found = threefry(jnp.array(key, jnp.uint32), tuple(jnp.uint32(word) for word in counter))
    assert [int(word) for word in found] == expected


def test_keys_draw_alone_what_they_draw_together():
    keys = wrapped(np.stack([SECRET.key_data("fit", index) for index in range(5)]))
    for draw in (
        lambda key: jax.random.normal(key, (7,)),
        lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
        lambda key: jax.random.key_data(jax.random.fold_in(key, 9)),
        lambda key: jax.random.bits(key, (5,), "uint8"),
    ):
        together = np.asarray(jax.vmap(draw)(keys))
        assert np.array_equal(together, np.stack([draw(key) for key in keys]))


def test_drawn_numbers_do_not_give_away_a_key():
    key = jax_key(SECRET, "fit")
    drawn = set(np.asarray(jax.random.bits(key, (4000,), "uint32")).tolist())
    split = np.asarray(jax.random.key_data(jax.random.split(key, 20))).ravel().tolist()
    folded = [np.asarray(jax.random.key_data(jax.random.fold_in(key, i))).ravel().tolist() for i in range(20)]
    own = np.asarray(jax.random.key_data(key)).tolist()
    words = [*split, *itertools.chain(*folded), *own]
    assert not drawn & set(words)
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (0,), (70_001,)])
def test_any_shape_can_be_drawn(shape):
    key = jax_key(SECRET, "shape")
    for width in ("uint8", "uint16", "uint32", "uint64"):
        found = jax.random.bits(key, shape, width)
        assert (found.shape, found.dtype) == (shape, width)


def test_numbers_of_both_libraries_are_uniform_and_normal():
    key = jax_key(SECRET, "numbers")
    generator = SECRET.generator("numbers")
    for uniform in (jax.random.uniform(key, (200_000,)), generator.random(200_000)):
        assert stats.kstest(np.asarray(uniform), "uniform").pvalue > 1e-4
    for normal in (jax.random.normal(key, (200_000,)), generator.standard_normal(200_000)):
        assert stats.kstest(np.asarray(normal), "norm").pvalue > 1e-4
    bits = np.unpackbits(np.asarray(jax.random.bits(key, (50_000,), "uint64")).view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(50_000)
