//! Files that people write by hand, such as settings, schemas, rubrics and keys. They are read whole, so they have a bound:
//! naming a device or a dump by mistake is an error, and does not fill the memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Largest file of this kind.
pub(crate) const SMALL_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The text of a file.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SMALL_FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SMALL_FILE_BYTES_MAX {
        let max = SMALL_FILE_BYTES_MAX / 1024 / 1024;
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} MiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused() {
        assert_eq!(read("/dev/zero").unwrap_err().to_string(), "it has more than 16 MiB");
    }
}
