# SPDX-License-Identifier: Apache-2.0
"""A random model in llama2.c's format, and a tokenizer, for tests on machines without a trained one.

    tiny_model.py DIRECTORY SEED LAYERS HEADS KV_HEADS DIM VOCAB

writes model.bin and tok512.bin; the same seed gives the same bytes. Pieces are the 256 bytes, the printable
characters, and pairs of letters for the rest of the vocabulary.
"""
import array
import random
import string
import struct
import sys

SEQ_LEN = 512


def weights(rng, layers, heads, kv_heads, dim, vocab):
    hidden, kv = 3 * dim, dim // heads * kv_heads
    some = lambda n: [rng.uniform(-1, 1) * (3 / dim) ** 0.5 for _ in range(n)]  # activations keep their size
    ones = lambda n: [1.0] * n
    yield some(vocab * dim)
    yield ones(layers * dim)
    for n in (dim * dim, dim * kv, dim * kv, dim * dim):
        yield some(layers * n)
    yield ones(layers * dim)
    for _ in range(3):
        yield some(layers * dim * hidden)
    yield ones(dim)
    yield ones(SEQ_LEN * dim // heads)


def main(out, seed, layers, heads, kv_heads, dim, vocab):
    rng = random.Random(seed)
    with open(out + '/model.bin', 'wb') as f:
        f.write(struct.pack('<7i', dim, 3 * dim, layers, heads, kv_heads, vocab, SEQ_LEN))
        for part in weights(rng, layers, heads, kv_heads, dim, vocab):
            array.array('f', part).tofile(f)
    pieces = ['<unk>', '<s>', '</s>'] + ['<0x%02X>' % i for i in range(256)] + list(' ' + string.ascii_letters)
    pieces += [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
    assert len(pieces) >= vocab, 'a vocabulary of at most %d' % len(pieces)
    with open(out + '/tok512.bin', 'wb') as f:
        f.write(struct.pack('<i', 8))
        for i, p in enumerate(pieces[:vocab]):
            f.write(struct.pack('<fi', -i, len(p)) + p.encode())


main(sys.argv[1], *map(int, sys.argv[2:]))
