//! What the stages of this process are doing right now, for people and `/metrics`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_pipeline::pipeline::Metric;

/// A number that changes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }
}

/// All of them. Where chunks run beside each other, queues are those of the one that moved last.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Units that wait to be asked.
    pub invoke_queue: Gauge,
    /// Units being asked.
    pub invoking: Gauge,
    /// Answers that wait to be judged.
    pub validation_queue: Gauge,
    /// Units that wait to be stored or written.
    pub writer_queue: Gauge,
    /// How long the oldest answer waits for the sink, in milliseconds.
    pub writer_lag_ms: Gauge,
    /// Units answered from the cache.
    pub cache_hits: Gauge,
    /// Units that were not.
    pub cache_misses: Gauge,
    /// Units whose answer in the cache was too old.
    pub cache_expired: Gauge,
    /// Answers that were put into the cache.
    pub cache_written: Gauge,
}

/// Says that nothing waits or is asked any more, however a run ends. One beside it that goes on says anew what it does.
pub(super) struct Rest(pub(super) Arc<Gauges>);

impl Drop for Rest {
    fn drop(&mut self) {
        let Gauges { invoke_queue, invoking, validation_queue, writer_queue, writer_lag_ms, .. } = &*self.0;
        for gauge in [invoke_queue, invoking, validation_queue, writer_queue, writer_lag_ms] {
            gauge.set(0);
        }
    }
}

impl Gauges {
    /// As figures for `/metrics`.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let gauge = |name, help, label, gauge: &Gauge| Metric {
            name,
            help,
            counts: false,
            label,
            value: gauge.get() as f64,
        };
        let waiting = |stage, of| {
            gauge(
                "score_queue_units",
                "Units of sheets that wait before a stage.",
                Some(("stage", stage)),
                of,
            )
        };
        let count = |name, help, label, of| Metric { counts: true, ..gauge(name, help, label, of) };
        let asked = |result, of| {
            let help = "Units of sheets answered from their cache, and not.";
            count("score_cache_requests_total", help, Some(("result", result)), of)
        };
        let help = "How long the oldest answer waits for the sink.";
        let lag = gauge("score_writer_lag_seconds", help, None, &self.writer_lag_ms);
        vec![
            waiting("invoke", &self.invoke_queue),
            waiting("validation", &self.validation_queue),
            waiting("writer", &self.writer_queue),
            gauge("score_invoking_units", "Units of sheets being asked.", None, &self.invoking),
            Metric { value: lag.value / 1_000.0, ..lag },
            asked("hit", &self.cache_hits),
            asked("miss", &self.cache_misses),
            count(
                "score_cache_written_total",
                "Answers that sheets wrote to their cache.",
                None,
                &self.cache_written,
            ),
            count(
                "score_cache_expired_total",
                "Units of sheets whose answer in the cache was too old.",
                None,
                &self.cache_expired,
            ),
        ]
    }
}

impl fmt::Display for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hits, misses) = (self.cache_hits.get(), self.cache_misses.get());
        write!(
            f,
            "to ask {} · asking {} · to judge {} · to write {} · lag {:.1} s · cache {} %",
            self.invoke_queue.get(),
            self.invoking.get(),
            self.validation_queue.get(),
            self.writer_queue.get(),
            self.writer_lag_ms.get() as f64 / 1000.0,
            (hits * 100).checked_div(hits + misses).unwrap_or(0),
        )
    }
}
