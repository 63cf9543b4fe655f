//! The text that Prometheus reads.

use std::fmt::Write as _;

/// Names of all metrics begin so.
const PREFIX: &str = "longhaul_";

/// Metrics, one after the other.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
}

impl Text {
    /// Something that goes up and down.
    pub(super) fn gauge<L, K>(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (L, f64)>)
    where
        L: AsRef<[(&'static str, K)]>,
        K: AsRef<str>,
    {
        self.metric(name, help, "gauge", rows);
    }

    /// Something that only goes up.
    pub(super) fn counter<L, K>(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (L, f64)>)
    where
        L: AsRef<[(&'static str, K)]>,
        K: AsRef<str>,
    {
        self.metric(name, help, "counter", rows);
    }

    /// A gauge without labels.
    pub(super) fn value(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.row(name, &[], value);
    }

    /// A counter without labels.
    pub(super) fn count(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.row(name, &[], value as f64);
    }

    /// How often something took how long: bounds and how many were at most that, the sum, and how many in all.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        rows: &[(Option<(&'static str, &str)>, Buckets)],
    ) {
        self.head(name, help, "histogram");
        for (label, buckets) in rows {
            let mut below = 0;
            for (bound, count) in &buckets.counts {
                below += count;
                let le = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                let mut labels: Vec<(&'static str, &str)> = label.iter().copied().collect();
                labels.push(("le", &le));
                self.row(&format!("{name}_bucket"), &labels, below as f64);
            }
            let labels: Vec<_> = label.iter().copied().collect();
            self.row(&format!("{name}_sum"), &labels, buckets.sum);
            self.row(&format!("{name}_count"), &labels, below as f64);
        }
    }

    /// All of it.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn metric<L, K>(&mut self, name: &str, help: &str, kind: &str, rows: impl IntoIterator<Item = (L, f64)>)
    where
        L: AsRef<[(&'static str, K)]>,
        K: AsRef<str>,
    {
        self.head(name, help, kind);
        for (labels, value) in rows {
            let labels: Vec<_> =
                labels.as_ref().iter().map(|(label, value)| (*label, value.as_ref())).collect();
            self.row(name, &labels, value);
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}");
    }

    fn row(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{PREFIX}{name}");
        if !labels.is_empty() {
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let _ = write!(self.text, "{{{}}}", labels.join(","));
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// How many were at most so long, each bound on its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Buckets {
    /// Upper bounds, the last of them infinite, and how many fell under each but not under the one before.
    pub(super) counts: Vec<(f64, u64)>,
    /// The sum of all.
    pub(super) sum: f64,
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_prometheus_reads_it() {
        let mut text = Text::default();
        text.gauge("jobs", "Jobs.", [([("queue", "a \"b\"\\c\n")], 2.0)]);
        text.count("none_total", "None.", 0);
        let buckets = Buckets { counts: vec![(0.5, 2), (f64::INFINITY, 1)], sum: 3.25 };
        text.histogram("wait_seconds", "Waits.", &[(Some(("op", "claim")), buckets)]);
        let expected = "\
# HELP longhaul_jobs Jobs.
# TYPE longhaul_jobs gauge
longhaul_jobs{queue=\"a \\\"b\\\"\\\\c\\n\"} 2
# HELP longhaul_none_total None.
# TYPE longhaul_none_total counter
longhaul_none_total 0
# HELP longhaul_wait_seconds Waits.
# TYPE longhaul_wait_seconds histogram
longhaul_wait_seconds_bucket{op=\"claim\",le=\"0.5\"} 2
longhaul_wait_seconds_bucket{op=\"claim\",le=\"+Inf\"} 3
longhaul_wait_seconds_sum{op=\"claim\"} 3.25
longhaul_wait_seconds_count{op=\"claim\"} 3
";
        assert_eq!(text.finish(), expected);
    }
}
