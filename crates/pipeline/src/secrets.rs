//! Bytes for secrets that nobody can guess.

use std::io;

use ring::rand::{SecureRandom as _, SystemRandom};

/// Draws them from the system.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let none = |_| io::Error::other("the system gives no random numbers");
    SystemRandom::new().fill(&mut bytes).map_err(none)?;
    Ok(bytes)
}
