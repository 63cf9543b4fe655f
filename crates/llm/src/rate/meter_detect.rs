//! Whether a limit that nobody names is one of requests or of tokens. What it counts is let through evenly; of the other,
//! the sizes of the calls make now more and now less.

use super::Meter;

/// Weight of the newest measure in the mean spread.
const WEIGHT: f64 = 0.3;
/// Fewer measures say nothing.
const MEASURES_MIN: u32 = 2;
/// The other one is chosen if it varies less than this share of the present one, and by more than a bit.
const CLEARLY: f64 = 0.6;
const SPREAD_MIN: f64 = 0.02;

/// How evenly each meter went.
#[derive(Debug, Default)]
pub(super) struct Choice {
    last: Option<[f64; 4]>,
    spread: [f64; 4],
    measures: u32,
}

impl Choice {
    /// The limit has changed: what is allowed from now on is not held against what was.
    pub(super) fn changed(&mut self) {
        self.last = None;
    }

    /// Takes in what was allowed a second, by meter; which meter is counted, as far as one can tell.
    pub(super) fn measured(&mut self, per_s: [f64; 4], present: Meter) -> Meter {
        if let Some(last) = self.last.replace(per_s) {
            for (spread, (new, old)) in self.spread.iter_mut().zip(per_s.into_iter().zip(last)) {
                let step = if new > 0.0 && old > 0.0 { (new / old).ln().abs() } else { 0.0 };
                *spread += WEIGHT * (step - *spread);
            }
            self.measures += 1;
        }
        let other = if present == Meter::Requests { Meter::Tokens } else { Meter::Requests };
        let [spread, others] = [present, other].map(|meter| self.spread[meter as usize]);
        let clearly = spread > SPREAD_MIN && others < CLEARLY * spread && per_s[other as usize] > 0.0;
        if clearly && self.measures >= MEASURES_MIN { other } else { present }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meter after some measures of requests and tokens.
    fn after(measures: &[(f64, f64)], mut present: Meter) -> Meter {
        let mut choice = Choice::default();
        for (requests, tokens) in measures {
            present = choice.measured([*requests, *tokens, 0.0, 0.0], present);
        }
        present
    }

    #[test]
    fn what_a_raised_limit_lets_through_is_not_held_against_what_was_before() {
        for (told, expected) in [(true, Meter::Requests), (false, Meter::Tokens)] {
            let mut choice = Choice::default();
            for measure in [[5.0, 3000.0, 0.0, 0.0], [5.0, 4100.0, 0.0, 0.0]] {
                assert_eq!(choice.measured(measure, Meter::Requests), Meter::Requests);
            }
            if told {
                choice.changed();
            }
            // Twice as many requests, which happen to be half as large.
            let meter = choice.measured([10.0, 4200.0, 0.0, 0.0], Meter::Requests);
            assert_eq!(meter, expected, "told of the change: {told}");
        }
    }

    #[test]
    fn what_is_let_through_evenly_is_what_is_counted() {
        let requests = [(5.0, 3000.0), (5.0, 4100.0), (5.0, 3500.0)];
        let tokens = [(5.0, 5000.0), (6.1, 5000.0), (5.2, 5010.0)];
        let both = [(5.0, 5000.0), (2.5, 2500.0), (5.0, 5000.0)];
        let table = [
            (&requests, Meter::Requests, Meter::Requests),
            (&requests, Meter::Tokens, Meter::Requests),
            (&tokens, Meter::Requests, Meter::Tokens),
            (&tokens, Meter::Tokens, Meter::Tokens),
            (&both, Meter::Requests, Meter::Requests),
            (&both, Meter::Tokens, Meter::Tokens),
        ];
        for (measures, before, expected) in table {
            assert_eq!(after(measures, before), expected, "{measures:?} with {before:?}");
        }
    }
}
