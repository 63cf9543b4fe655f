//! How requests are cut into batches, and whether to send them as batches at all. Pure.

use std::time::Duration;

use longhaul_llm::provider::BatchCaps;

use super::run::Mode;

/// Most requests in a batch of ours. Providers allow more, but what is sent together is held in memory together, and a
/// batch that fails as a whole is sent again as a whole.
pub const REQUESTS_MAX: usize = 10_000;
/// Most bytes in a batch of ours.
pub const BYTES_MAX: usize = 24_000_000;
/// Bytes of a line beyond the request's own.
const LINE_OVERHEAD: usize = 300;

/// How the user wants requests sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strategy {
    /// One by one.
    #[default]
    Sync,
    /// In provider batches; one by one where there are none.
    Batch,
    /// Whatever is cheapest in time.
    Auto,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The mode.
    pub mode: Mode,
    /// Why it is not what was asked for, or how it was chosen.
    pub note: Option<String>,
    /// In batch mode with a deadline: time left for the batch, after which the rest goes one by one.
    pub switch_after: Option<Duration>,
}

/// Time that the rest of a run needs when it is taken out of a batch: a start, and so much for each request.
const TAIL_START: Duration = Duration::from_secs(10 * 60);
const TAIL_PER_REQUEST: Duration = Duration::from_millis(200);

/// Decides how a run is sent.
pub fn decide(
    strategy: Strategy,
    batches: Option<&BatchCaps>,
    requests: u64,
    time_left: Option<Duration>,
) -> Decision {
    let sync =
        |note: Option<&str>| Decision { mode: Mode::Sync, note: note.map(str::to_owned), switch_after: None };
    if strategy == Strategy::Sync {
        return sync(None);
    }
    if batches.is_none() {
        return match strategy {
            Strategy::Batch => sync(Some("this provider has no batch API, so requests are sent one by one")),
            Strategy::Auto | Strategy::Sync => sync(None),
        };
    }
    let Some(time_left) = time_left else {
        return Decision { mode: Mode::Batch, note: None, switch_after: None };
    };
    let tail = TAIL_START + TAIL_PER_REQUEST.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
    match time_left.checked_sub(tail) {
        Some(for_batch) if for_batch >= tail => {
            Decision { mode: Mode::Batch, note: None, switch_after: Some(for_batch) }
        }
        _ => sync(Some("the deadline is too near for a provider batch, so requests are sent one by one")),
    }
}

/// What a request adds to a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of its body.
    pub bytes: usize,
    /// Texts to embed.
    pub inputs: usize,
}

/// Requests gathered for one batch.
#[derive(Debug, Clone)]
pub struct Chunk {
    requests_max: usize,
    most: Load,
    requests: usize,
    load: Load,
}

impl Chunk {
    /// An empty chunk under a provider's limits and our own.
    pub fn new(caps: Option<&BatchCaps>) -> Self {
        let (requests, bytes) =
            caps.map_or((usize::MAX, usize::MAX), |caps| (caps.requests_max, caps.bytes_max));
        let inputs = caps.and_then(|caps| caps.embeddings).map_or(usize::MAX, |embed| embed.inputs_max);
        Self {
            requests_max: requests.min(REQUESTS_MAX),
            most: Load { bytes: bytes.min(BYTES_MAX), inputs },
            requests: 0,
            load: Load::default(),
        }
    }

    /// Whether another request does not fit any more.
    pub fn is_full_with(&self, load: Load) -> bool {
        self.requests > 0
            && (self.requests >= self.requests_max
                || self.load.bytes + load.bytes + LINE_OVERHEAD > self.most.bytes
                || self.load.inputs + load.inputs > self.most.inputs)
    }

    /// Adds a request.
    pub fn add(&mut self, load: Load) {
        self.requests += 1;
        self.load.bytes += load.bytes + LINE_OVERHEAD;
        self.load.inputs += load.inputs;
    }

    /// Empties it and says how many requests it held.
    pub fn take(&mut self) -> u64 {
        self.load = Load::default();
        std::mem::take(&mut self.requests) as u64
    }
}

#[cfg(test)]
mod tests {
    use longhaul_llm::provider::EmbedCaps;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn caps() -> BatchCaps {
        let embeddings = Some(EmbedCaps { inputs_max: 10, inputs_each_max: 10 });
        BatchCaps { requests_max: 3, bytes_max: 2_000, tagged: true, window: 24 * HOUR, embeddings }
    }

    #[test]
    fn strategy_table() {
        let caps = caps();
        let mode = |strategy, batches, requests, left| decide(strategy, batches, requests, left).mode;
        let rows = [
            (Strategy::Sync, Some(&caps), 10, None, Mode::Sync),
            (Strategy::Batch, Some(&caps), 10, None, Mode::Batch),
            (Strategy::Batch, None, 10, None, Mode::Sync),
            (Strategy::Auto, None, 10, None, Mode::Sync),
            (Strategy::Auto, Some(&caps), 10, None, Mode::Batch),
            (Strategy::Auto, Some(&caps), 10, Some(HOUR), Mode::Batch),
            (Strategy::Auto, Some(&caps), 10, Some(HOUR / 4), Mode::Sync),
            (Strategy::Auto, Some(&caps), 1_000_000, Some(24 * HOUR), Mode::Sync),
        ];
        for (strategy, batches, requests, left, expected) in rows {
            assert_eq!(mode(strategy, batches, requests, left), expected, "{strategy:?} {requests} {left:?}");
        }
        assert!(decide(Strategy::Batch, None, 1, None).note.is_some(), "a fallback is never silent");
        let switch = decide(Strategy::Auto, Some(&caps), 0, Some(HOUR)).switch_after;
        assert_eq!(switch, Some(HOUR - TAIL_START));
    }

    #[test]
    fn chunks_keep_to_all_limits_and_always_take_one() {
        let caps = caps();
        let bytes = |bytes| Load { bytes, inputs: 0 };
        let mut chunk = Chunk::new(Some(&caps));
        assert!(
            !chunk.is_full_with(bytes(1_000_000)),
            "an empty chunk takes any request; the provider judges it"
        );
        chunk.add(bytes(1_000));
        assert!(!chunk.is_full_with(bytes(400)));
        assert!(chunk.is_full_with(bytes(401)));
        chunk.add(bytes(10));
        chunk.add(bytes(10));
        assert!(chunk.is_full_with(bytes(0)));
        assert_eq!(chunk.take(), 3);
        assert!(!chunk.is_full_with(bytes(0)));
        chunk.add(Load { bytes: 1, inputs: 7 });
        assert!(!chunk.is_full_with(Load { bytes: 1, inputs: 3 }));
        assert!(chunk.is_full_with(Load { bytes: 1, inputs: 4 }));
        assert_eq!(chunk.take(), 1);
        assert!(!chunk.is_full_with(Load { bytes: 1, inputs: 10 }), "texts are counted anew in each batch");
    }
}
