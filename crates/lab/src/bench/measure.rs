//! Numbers with their spread, their raw counterpart and their goal.

use serde::Serialize;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Jobs or commits per second.
    PerSecond,
    /// Milliseconds.
    Millis,
    /// Bytes.
    Bytes,
    /// Megabytes.
    Megabytes,
    /// A ratio of two numbers of one run.
    Ratio,
}

/// What should be reached.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Ours over raw, at least.
    Ratio(f64),
    /// Ours over raw, at most.
    RatioAtMost(f64),
    /// Ours itself, at least.
    AtLeast(f64),
    /// Ours itself, at most.
    AtMost(f64),
}

impl Goal {
    /// Whether it is reached.
    pub fn is_met(self, measurement: &Measurement) -> bool {
        match self {
            Self::Ratio(goal) => measurement.ratio().is_some_and(|ratio| ratio >= goal),
            Self::RatioAtMost(goal) => measurement.ratio().is_some_and(|ratio| ratio <= goal),
            Self::AtLeast(goal) => measurement.ours() >= goal,
            Self::AtMost(goal) => measurement.ours() <= goal,
        }
    }
}

/// One repetition.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Single {
    /// Of the engine.
    pub ours: f64,
    /// Of the bare store.
    pub raw: Option<f64>,
}

/// A measured number.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    /// What was measured.
    pub name: String,
    /// Durability of a file, or which server.
    pub level: &'static str,
    /// What its numbers count.
    pub unit: Unit,
    /// Each repetition.
    pub singles: Vec<Single>,
    /// What should be reached.
    pub goal: Option<Goal>,
}

impl Measurement {
    pub(super) fn new(name: impl Into<String>, level: &'static str, unit: Unit, goal: Option<Goal>) -> Self {
        Self { name: name.into(), level, unit, singles: Vec::new(), goal }
    }

    /// With one more repetition.
    pub(super) fn add(&mut self, ours: f64, raw: Option<f64>) {
        self.singles.push(Single { ours, raw });
    }

    /// With the only repetition.
    pub(super) fn once(mut self, ours: f64, raw: Option<f64>) -> Self {
        self.add(ours, raw);
        self
    }

    /// The median of ours.
    pub fn ours(&self) -> f64 {
        median(self.singles.iter().map(|single| single.ours).collect()).unwrap_or(0.0)
    }

    /// The median of raw.
    pub fn raw(&self) -> Option<f64> {
        median(self.singles.iter().filter_map(|single| single.raw).collect())
    }

    /// The median of the ratios within each repetition.
    pub fn ratio(&self) -> Option<f64> {
        let ratio = |single: &Single| single.raw.filter(|raw| *raw > 0.0).map(|raw| single.ours / raw);
        median(self.singles.iter().filter_map(ratio).collect())
    }

    /// Least and greatest of ours, where there are several.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let values = || self.singles.iter().map(|single| single.ours);
        (self.singles.len() > 1)
            .then(|| (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)))
    }
}

/// The middle value; of two middle ones the upper.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The value that so many percent of all do not pass.
pub(super) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_taken_within_each_repetition() {
        let mut measurement = Measurement::new("m", "relaxed", Unit::PerSecond, Some(Goal::Ratio(0.5)));
        for (ours, raw) in [(50.0, 100.0), (60.0, 100.0), (10.0, 100.0)] {
            measurement.add(ours, Some(raw));
        }
        assert_eq!((measurement.ours(), measurement.ratio()), (50.0, Some(0.5)));
        assert!(measurement.goal.is_some_and(|goal| goal.is_met(&measurement)));
    }

    #[test]
    fn percentiles_take_the_value_itself() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99), percentile(&[], 99)),
            (50.0, 99.0, 0.0)
        );
    }
}
