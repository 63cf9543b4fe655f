//! Hashes of content and draws from them. All that the simulator makes up comes from here: from the seed and the request,
//! never from a shared generator, so that the order of calls changes nothing. The functions are our own, because a hash of
//! the standard library may change between releases and answer keys must not.

use std::io;

const PRIMES: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// A hash over fields. It does not matter in how many pieces a field is written, only where it ends.
#[derive(Debug, Clone)]
pub(crate) struct ContentHash {
    state: u64,
    tail: [u8; 8],
    filled: usize,
    bytes: u64,
}

impl ContentHash {
    pub(crate) fn new() -> Self {
        Self { state: PRIMES[1], tail: [0; 8], filled: 0, bytes: 0 }
    }

    /// More of the current field.
    pub(crate) fn push(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if self.filled > 0 {
            let taken = piece.len().min(8 - self.filled);
            self.tail[self.filled..self.filled + taken].copy_from_slice(&piece[..taken]);
            self.filled += taken;
            piece = &piece[taken..];
            if self.filled < 8 {
                return;
            }
            self.word(u64::from_le_bytes(self.tail));
            self.filled = 0;
        }
        let (words, rest) = piece.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        self.tail[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// Ends the current field.
    pub(crate) fn end(&mut self) {
        let mut last = [0; 8];
        last[..self.filled].copy_from_slice(&self.tail[..self.filled]);
        self.word(u64::from_le_bytes(last));
        self.word(0xff00 | self.filled as u64);
        self.filled = 0;
    }

    /// A whole field.
    pub(crate) fn field(&mut self, piece: &[u8]) {
        self.push(piece);
        self.end();
    }

    /// Bytes that were written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of the fields that have ended.
    pub(crate) fn value(&self) -> u64 {
        finish(self.state)
    }

    fn word(&mut self, word: u64) {
        let product = u128::from(self.state ^ word ^ PRIMES[0]) * u128::from(PRIMES[2]);
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ word.rotate_left(29);
    }
}

/// JSON can be written into a hash without a copy of its text.
impl io::Write for ContentHash {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.push(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The hash of one text.
pub(crate) fn hash_of(text: &str) -> u64 {
    let mut hash = ContentHash::new();
    hash.field(text.as_bytes());
    hash.value()
}

/// What a draw is for. Draws for different purposes know nothing of each other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Answer = 1,
    Fault,
    Shape,
    Latency,
    Line,
    LineOrder,
    Batch,
    Poll,
    Id,
}

/// A sequence of numbers from a seed, a thing and a purpose.
#[derive(Debug, Clone)]
pub(crate) struct Draw {
    state: u64,
}

impl Draw {
    /// The draws of a thing, such as a request, that do not change with repetition.
    pub(crate) fn new(seed: u64, thing: u64, purpose: Purpose) -> Self {
        Self { state: finish(finish(seed ^ PRIMES[0]) ^ thing.rotate_left(17) ^ ((purpose as u64) << 56)) }
    }

    /// The draws of one attempt at a thing.
    pub(crate) fn of_attempt(seed: u64, thing: u64, attempt: u32, purpose: Purpose) -> Self {
        let base = Self::new(seed, thing, purpose);
        Self { state: finish(base.state ^ (u64::from(attempt) << 32)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(PRIMES[0]);
        finish(self.state)
    }

    /// In `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `bound`; zero for a bound of zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A place in a list of this length; it must have one.
    pub(crate) fn place(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or_default()
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.place(choices.len())]
    }
}

fn finish(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(PRIMES[1]);
    state = (state ^ (state >> 27)).wrapping_mul(PRIMES[2]);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_field_do_not_matter_but_fields_do() {
        let text = b"a field that is longer than one word of eight bytes";
        let mut whole = ContentHash::new();
        whole.field(text);
        for cut in 0..text.len() {
            let mut pieces = ContentHash::new();
            pieces.push(&text[..cut]);
            pieces.push(&text[cut..]);
            pieces.end();
            assert_eq!(whole.value(), pieces.value(), "cut at {cut}");
            let mut fields = ContentHash::new();
            fields.field(&text[..cut]);
            fields.field(&text[cut..]);
            assert_ne!(whole.value(), fields.value(), "cut at {cut}");
        }
    }

    #[test]
    fn draws_are_even_and_apart() {
        let mut draw = Draw::new(1, 2, Purpose::Fault);
        let mean = (0..10_000).map(|_| draw.unit()).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        let firsts: Vec<u64> = [
            Draw::new(1, 2, Purpose::Fault),
            Draw::new(1, 2, Purpose::Shape),
            Draw::new(1, 3, Purpose::Fault),
            Draw::new(2, 2, Purpose::Fault),
            Draw::of_attempt(1, 2, 1, Purpose::Fault),
            Draw::of_attempt(1, 2, 2, Purpose::Fault),
        ]
        .map(|mut draw| draw.next())
        .to_vec();
        for (index, first) in firsts.iter().enumerate() {
            assert!(!firsts[..index].contains(first), "{firsts:?}");
        }
    }

    /// Keys that were written down must hold in the next release too.
    #[test]
    fn hash_is_the_same_for_ever() {
        assert_eq!(format!("{:016x}", hash_of("longhaul")), "212116eba10d2202");
    }
}
