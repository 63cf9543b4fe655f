//! The lines of a child's output, until it closes or until the child has ended and nothing more comes.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::sync::watch;

use super::OUTPUT_GRACE;

/// Reads one stream of a child.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    has_ended: watch::Receiver<bool>,
    line: Vec<u8>,
    given_up: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(stream: R, has_ended: &watch::Receiver<bool>) -> Self {
        Self {
            reader: BufReader::new(stream),
            has_ended: has_ended.clone(),
            line: Vec::new(),
            given_up: false,
        }
    }

    /// The next line with its end, in pieces of at most `bytes_max`.
    pub(super) async fn next(&mut self, bytes_max: u64) -> io::Result<Option<String>> {
        self.line.clear();
        if self.given_up {
            return Ok(None);
        }
        let has_ended = &mut self.has_ended;
        // A process that left the group survives its kill and may hold the stream open for ever. Each line has its
        // own time: a reader that is merely slow loses nothing.
        let silence = async {
            let _ = has_ended.wait_for(|ended| *ended).await;
            tokio::time::sleep(OUTPUT_GRACE).await;
        };
        let mut piece = (&mut self.reader).take(bytes_max);
        tokio::select! {
            biased;
            read = piece.read_until(b'\n', &mut self.line) => { read?; }
            () = silence => self.given_up = true,
        }
        // Also what came of a line before the silence.
        Ok((!self.line.is_empty()).then(|| String::from_utf8_lossy(&self.line).into_owned()))
    }
}
