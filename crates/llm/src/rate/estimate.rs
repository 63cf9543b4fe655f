//! How many tokens a call will be charged with, before it is sent. Learns from what calls turned out to use.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::quota::Charge;
use super::{Ask, OutputCharge};

/// Weight of the newest call in the ratio of true to estimated input.
const RATIO_WEIGHT: f64 = 0.05;
/// Bytes tell tokens within these factors, whatever the language; beyond, something else is wrong.
const RATIO_MIN: f64 = 0.05;
const RATIO_MAX: f64 = 20.0;
/// The sums start as if there had been calls of this size.
const INPUT_TYPICAL: f64 = 500.0;
/// Outputs remembered for a run and for the route.
const OUTPUTS_MAX: usize = 64;
/// Fewer outputs of a run than this say nothing yet; the route's are used.
const OUTPUTS_MIN: usize = 8;
/// Runs remembered; the one unused for longest is forgotten first.
const RUNS_MAX: usize = 256;
/// Reserved for the output where neither the call nor experience says anything.
const OUTPUT_DEFAULT: u64 = 1024;

/// The estimator of a route.
#[derive(Debug)]
pub(super) struct Estimator {
    output_charge: OutputCharge,
    /// Fading sums: their quotient is right for the sum of many calls, as a mean of quotients would not be.
    input_true: f64,
    input_estimated: f64,
    route: Outputs,
    runs: HashMap<Arc<str>, Outputs>,
    clock: u64,
}

impl Estimator {
    pub(super) fn new(
        output_charge: OutputCharge,
        input_ratio: Option<f64>,
        output_p90: Option<u64>,
    ) -> Self {
        let known = input_ratio.filter(|ratio| ratio.is_finite()).unwrap_or(1.0);
        Self {
            output_charge,
            input_true: INPUT_TYPICAL * known.clamp(RATIO_MIN, RATIO_MAX),
            input_estimated: INPUT_TYPICAL,
            route: Outputs { p90: output_p90, ..Outputs::default() },
            runs: HashMap::new(),
            clock: 0,
        }
    }

    /// What to reserve for a call.
    pub(super) fn charge(&self, ask: &Ask) -> Charge {
        let input = (ask.input_tokens as f64 * self.input_ratio()).round() as u64;
        Charge::call(input, self.output(ask))
    }

    fn output(&self, ask: &Ask) -> u64 {
        let usual = || {
            let run = self.runs.get(&ask.run).filter(|run| run.recent.len() >= OUTPUTS_MIN);
            run.and_then(|run| run.p90).or(self.route.p90)
        };
        match (ask.max_tokens.map(u64::from), self.output_charge) {
            (Some(most), OutputCharge::MaxTokens | OutputCharge::Refunded) => most,
            (Some(most), OutputCharge::Actual) => usual().map_or(most, |usual| usual.min(most)),
            (None, _) => usual().unwrap_or(OUTPUT_DEFAULT),
        }
    }

    /// Learns from a call: its raw estimate and what was counted in the end.
    pub(super) fn record(&mut self, run: &Arc<str>, estimated: u64, input: u64, output: u64) {
        if estimated > 0 && input > 0 {
            self.input_true += RATIO_WEIGHT * (input as f64 - self.input_true);
            self.input_estimated += RATIO_WEIGHT * (estimated as f64 - self.input_estimated);
        }
        self.clock += 1;
        self.route.push(output, self.clock);
        if !self.runs.contains_key(run) {
            self.forget_one();
        }
        self.runs.entry(run.clone()).or_default().push(output, self.clock);
    }

    /// True input a token estimated.
    pub(super) fn input_ratio(&self) -> f64 {
        (self.input_true / self.input_estimated).clamp(RATIO_MIN, RATIO_MAX)
    }

    /// What nine of ten outputs of the route stay below.
    pub(super) fn output_p90(&self) -> Option<u64> {
        self.route.p90
    }

    fn forget_one(&mut self) {
        if self.runs.len() < RUNS_MAX {
            return;
        }
        let oldest = self.runs.iter().min_by_key(|(_, outputs)| outputs.used).map(|(run, _)| run.clone());
        if let Some(run) = oldest {
            self.runs.remove(&run);
        }
    }
}

#[derive(Debug, Default)]
struct Outputs {
    recent: VecDeque<u64>,
    p90: Option<u64>,
    used: u64,
}

impl Outputs {
    fn push(&mut self, output: u64, used: u64) {
        if self.recent.len() == OUTPUTS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(output);
        self.used = used;
        let mut sorted: Vec<u64> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        self.p90 = sorted.get(sorted.len() * 9 / 10).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(max_tokens: Option<u32>) -> Ask {
        Ask { max_tokens, ..Ask::new("a", 1000) }
    }

    #[test]
    fn the_ratio_of_true_to_estimated_input_is_learnt() {
        let mut estimator = Estimator::new(OutputCharge::MaxTokens, None, None);
        for _ in 0..200 {
            estimator.record(&"a".into(), 100, 130, 1);
            estimator.record(&"a".into(), 1000, 1300, 1);
        }
        assert_eq!(estimator.charge(&ask(Some(10))), Charge::call(1300, 10));
    }

    #[test]
    fn a_known_ratio_is_used_from_the_start() {
        let charge = |ratio| Estimator::new(OutputCharge::MaxTokens, Some(ratio), None).charge(&ask(Some(0)));
        assert_eq!(charge(1.5), Charge::call(1500, 0));
        assert_eq!(charge(f64::NAN), Charge::call(1000, 0));
        assert_eq!(charge(-3.0), Charge::call(50, 0));
    }

    #[test]
    fn output_is_reserved_as_the_provider_charges_it() {
        // charged how, experience, max_tokens -> reserved
        let table = [
            (OutputCharge::MaxTokens, true, Some(500), 500),
            (OutputCharge::Refunded, true, Some(500), 500),
            (OutputCharge::Actual, true, Some(500), 90),
            (OutputCharge::Actual, true, Some(50), 50),
            (OutputCharge::Actual, true, None, 90),
            (OutputCharge::MaxTokens, true, None, 90),
            (OutputCharge::Actual, false, Some(500), 500),
            (OutputCharge::Actual, false, None, OUTPUT_DEFAULT),
        ];
        for (output_charge, experienced, max_tokens, reserved) in table {
            let mut estimator = Estimator::new(output_charge, None, None);
            for output in (0..100).filter(|_| experienced).map(|n| if n % 5 == 4 { 90 } else { 10 }) {
                estimator.record(&"a".into(), 0, 0, output);
            }
            let charge = estimator.charge(&ask(max_tokens));
            assert_eq!(
                charge,
                Charge::call(1000, reserved),
                "{output_charge:?} {experienced} {max_tokens:?}"
            );
        }
    }

    #[test]
    fn runs_are_forgotten_oldest_first() {
        let mut estimator = Estimator::new(OutputCharge::Actual, None, None);
        for run in 0..=RUNS_MAX {
            estimator.record(&run.to_string().into(), 0, 0, 1);
        }
        assert_eq!(estimator.runs.len(), RUNS_MAX);
        assert!(!estimator.runs.contains_key("0"));
    }
}
