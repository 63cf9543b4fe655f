//! Bodies that are read whole before anybody looks at them. A slow client may hold one for minutes, so all of them together
//! have a bound: a short one always has room, and what is longer takes from a room that all requests share. Who finds it
//! taken is told to come back: waiting for it would mean waiting for the slowest.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody as _};
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// Up to this length a body takes no room of the others': what every connection may hold beside its own buffers.
pub const SMALL_BODY_BYTES: usize = 64 * 1024;
/// Longest time from the first piece to the last. The silence between two is bounded on its own; this ends who drips.
const WHOLE_BODY_WAIT: Duration = Duration::from_secs(600);

/// The room for long bodies.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    /// A permit a byte.
    room: Arc<Semaphore>,
}

/// A whole body, and its room until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct WholeBody {
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Deref for WholeBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why there is no whole body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is longer than allowed.
    TooLong,
    /// Other bodies take all the room.
    NoRoom,
    /// It did not come in time.
    TooSlow,
    /// The connection broke off, or its silence was too long.
    Broken(String),
}

impl Unread {
    /// What the client is told.
    pub(crate) fn problem(&self, bytes_max: usize) -> Problem {
        match self {
            Self::TooLong => {
                let text = format!(
                    "the body has more than {bytes_max} bytes: send several requests, or upload a file"
                );
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
            }
            Self::NoRoom => {
                let text = format!(
                    "too many long bodies are under way: try again, or send less than {SMALL_BODY_BYTES} bytes"
                );
                Problem { code: "busy", ..Problem::unavailable(text) }
            }
            Self::TooSlow => {
                let text = format!("the body took longer than {} s", WHOLE_BODY_WAIT.as_secs());
                Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", text)
            }
            Self::Broken(error) => Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "body_broken_off",
                format!("the body did not come whole: {error}"),
            ),
        }
    }
}

impl BodyBudget {
    /// With room for so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS))) }
    }

    /// Reads a body to its end.
    pub(crate) async fn read(&self, body: Body, bytes_max: usize) -> Result<WholeBody, Unread> {
        let mut pieces = body.into_data_stream();
        let Some(first) = pieces.next().await else { return Ok(WholeBody::default()) };
        let first = first.map_err(|error| Unread::Broken(error.to_string()))?;
        if first.len() > bytes_max {
            return Err(Unread::TooLong);
        }
        // Most come in one piece, which is a part of the connection's own buffer.
        if pieces.is_end_stream() && first.len() <= SMALL_BODY_BYTES {
            return Ok(WholeBody { bytes: first, _room: None });
        }
        let started = Instant::now();
        let mut gathered = Gathered { bytes: Vec::new(), room: None };
        self.add(&mut gathered, &first, bytes_max)?;
        drop(first);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Unread::Broken(error.to_string()))?;
            if started.elapsed() > WHOLE_BODY_WAIT {
                return Err(Unread::TooSlow);
            }
            self.add(&mut gathered, &piece, bytes_max)?;
        }
        Ok(WholeBody { bytes: gathered.bytes.into(), _room: gathered.room })
    }

    /// Room is taken for what has come, not for what was announced: an announcement costs its sender nothing.
    fn add(&self, gathered: &mut Gathered, piece: &[u8], bytes_max: usize) -> Result<(), Unread> {
        let length = gathered.bytes.len() + piece.len();
        if length > bytes_max {
            return Err(Unread::TooLong);
        }
        if length > gathered.bytes.capacity() {
            // Twice as much each time, so that the pieces are copied a few times only.
            let capacity = length.max(gathered.bytes.capacity() * 2).max(SMALL_BODY_BYTES).min(bytes_max);
            self.take(gathered, capacity - capacity.min(SMALL_BODY_BYTES))?;
            gathered.bytes.reserve_exact(capacity - gathered.bytes.len());
        }
        gathered.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn take(&self, gathered: &mut Gathered, bytes: usize) -> Result<(), Unread> {
        let more = bytes - gathered.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits).min(bytes);
        let Ok(more) = u32::try_from(more) else { return Err(Unread::TooLong) };
        if more == 0 {
            return Ok(());
        }
        let taken = Arc::clone(&self.room).try_acquire_many_owned(more).map_err(|_| Unread::NoRoom)?;
        match &mut gathered.room {
            Some(room) => room.merge(taken),
            none => *none = Some(taken),
        }
        Ok(())
    }
}

/// What has come so far. Its capacity beyond the small body is what its room covers.
struct Gathered {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[usize]) -> Body {
        let pieces: Vec<_> =
            pieces.iter().map(|length| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; *length]))).collect();
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test]
    async fn long_bodies_share_a_room_and_short_ones_need_none() {
        const LONG: usize = 3 * SMALL_BODY_BYTES;
        let bodies = BodyBudget::new(LONG);
        let held = bodies.read(body(&[LONG]), LONG).await.expect("there is room");
        assert_eq!(held.len(), LONG);
        assert_eq!(bodies.read(body(&[LONG]), LONG).await.expect_err("the room is taken"), Unread::NoRoom);
        let short = bodies.read(body(&[100; 600]), LONG).await.expect("a short one needs none");
        assert_eq!(short.len(), 60_000);
        drop(held);
        let pieces = [SMALL_BODY_BYTES / 2; 6];
        assert_eq!(bodies.read(body(&pieces), LONG).await.expect("there is room again").len(), LONG);
        assert_eq!(bodies.room.available_permits(), LONG, "all of it is given back");
    }

    #[tokio::test]
    async fn a_body_of_any_pieces_is_bounded_and_comes_whole() {
        for pieces in [&[][..], &[0], &[7], &[1, 2, 3], &[70_000, 1], &[1, 70_000, 29_999]] {
            let length: usize = pieces.iter().sum();
            let whole =
                BodyBudget::new(1_000_000).read(body(pieces), 100_000).await.expect("within the bound");
            assert_eq!(whole.len(), length, "{pieces:?}");
            if length > 0 {
                let over = BodyBudget::new(1_000_000).read(body(pieces), length - 1).await;
                assert_eq!(over.expect_err("one too many"), Unread::TooLong, "{pieces:?}");
            }
        }
    }
}
