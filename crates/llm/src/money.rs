//! Money as whole nano-dollars: a token of the cheapest model costs several of them, so that a call's cost needs no
//! rounding that anybody could find again in a sum. Nothing here rounds by itself, except for people's eyes.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Digits after the point that a nano-dollar has.
const DIGITS: usize = 9;
/// Nano-dollars in a dollar.
const DOLLAR: u64 = 1_000_000_000;

/// An amount in billionths of a US dollar. In JSON it is a number of dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoUsd(pub u64);

impl NanoUsd {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount that a database's integer holds: nine thousand million dollars.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Whole dollars.
    pub const fn dollars(dollars: u64) -> Self {
        Self(dollars.saturating_mul(DOLLAR))
    }

    /// The sum, which ends at [`NanoUsd::MAX`]: an amount that large must never wrap around into a small one.
    pub const fn saturating_add(self, other: Self) -> Self {
        let sum = self.0.saturating_add(other.0);
        if sum > Self::MAX.0 { Self::MAX } else { Self(sum) }
    }

    /// The difference, or nothing where `other` is more.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This much for each of `count`.
    pub const fn saturating_mul(self, count: u64) -> Self {
        let product = self.0.saturating_mul(count);
        if product > Self::MAX.0 { Self::MAX } else { Self(product) }
    }

    /// This many times over, to the nearest. Zero for a factor that is not a number.
    pub fn scaled(self, factor: f64) -> Self {
        // A double is exact up to nine million dollars; estimates need no more.
        Self((self.0 as f64 * factor).round() as u64).min(Self::MAX)
    }

    /// In dollars, for what computes with doubles.
    pub fn as_dollars(self) -> f64 {
        self.0 as f64 / DOLLAR as f64
    }

    /// From dollars, to the nearest. None for a value that is negative, too large or not a number.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let nanos = (dollars * DOLLAR as f64).round();
        (0.0..Self::MAX.0 as f64).contains(&nanos).then_some(Self(nanos as u64))
    }

    /// Exactly, in dollars without a sign, for programs: `0.37`.
    pub fn plain(self) -> String {
        let mut text = exact(self.0);
        text.remove(0);
        text
    }

    /// For people's eyes: dollars and cents, with more digits the smaller it is.
    pub fn short(self) -> String {
        rounded(self.0, places(self.0), Rounding::Nearest)
    }
}

/// What was spent when some of it is not known: between what is booked and that with all that may have been billed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CostRange {
    /// The least.
    #[serde(rename = "cost_usd")]
    pub low: NanoUsd,
    /// The most.
    #[serde(rename = "cost_max_usd")]
    pub high: NanoUsd,
}

impl CostRange {
    /// Whether it is one amount.
    pub fn is_exact(self) -> bool {
        self.low == self.high
    }

    /// Whether an amount lies in it.
    pub fn contains(self, amount: NanoUsd) -> bool {
        (self.low..=self.high).contains(&amount)
    }
}

/// Rounded outwards, so that what is shown contains what was meant: `$0.37 to $0.42`; one amount where the ends are the same.
impl fmt::Display for CostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            return f.pad(&self.low.short());
        }
        let low = rounded(self.low.0, places(self.low.0), Rounding::Down);
        f.pad(&format!("{low} to {}", rounded(self.high.0, places(self.high.0), Rounding::Up)))
    }
}

impl Serialize for NanoUsd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_dollars())
    }
}

impl<'de> Deserialize<'de> for NanoUsd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        Self::from_dollars(dollars)
            .ok_or_else(|| serde::de::Error::custom(format_args!("{dollars} is not an amount in dollars")))
    }
}

impl Sum for NanoUsd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

/// Exact, with at least two decimals: `$0.37`, `$12.00`, `$0.000125`. A precision, as in `{:.2}`, rounds to the nearest
/// for people's eyes; what would then look like nothing is told as `<$0.01`.
impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match f.precision() {
            Some(digits) if digits < DIGITS => {
                let text = rounded(self.0, digits, Rounding::Nearest);
                let shown_as_nothing = self.0 > 0 && text.bytes().all(|byte| !(b'1'..=b'9').contains(&byte));
                if shown_as_nothing { format!("<{}", rounded(1, digits, Rounding::Up)) } else { text }
            }
            _ => exact(self.0),
        };
        // `pad` would take the precision for a length to cut at.
        match f.width() {
            Some(width) if f.align() == Some(fmt::Alignment::Left) => write!(f, "{text:<width$}"),
            Some(width) => write!(f, "{text:>width$}"),
            None => f.write_str(&text),
        }
    }
}

fn exact(nanos: u64) -> String {
    let fraction = format!("{:0DIGITS$}", nanos % DOLLAR);
    let kept = fraction.trim_end_matches('0').len().max(2);
    format!("${}.{}", nanos / DOLLAR, &fraction[..kept])
}

#[derive(Clone, Copy)]
enum Rounding {
    Down,
    Nearest,
    Up,
}

/// Decimals that show an amount to a person: two or three digits of what is small.
fn places(nanos: u64) -> usize {
    match nanos {
        0 | 100_000_000.. => 2,
        1_000_000..100_000_000 => 4,
        1_000..1_000_000 => 6,
        1..1_000 => DIGITS,
    }
}

fn rounded(nanos: u64, digits: usize, rounding: Rounding) -> String {
    let scale = (0..digits).fold(1, |scale, _| scale * 10);
    let unit = DOLLAR / scale;
    let units = match rounding {
        Rounding::Down => nanos / unit,
        Rounding::Nearest => nanos.saturating_add(unit / 2) / unit,
        Rounding::Up => nanos.div_ceil(unit),
    };
    match digits {
        0 => format!("${units}"),
        _ => format!("${}.{:0digits$}", units / scale, units % scale),
    }
}

/// A text that is no amount of money.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an amount in dollars: {reason}; write it like 1.50 or $1.50")]
pub struct NotMoney {
    text: String,
    reason: &'static str,
}

impl FromStr for NanoUsd {
    type Err = NotMoney;

    fn from_str(text: &str) -> Result<Self, NotMoney> {
        decimal(text.trim().trim_start_matches('$'))
            .map(Self)
            .map_err(|reason| NotMoney { text: text.to_owned(), reason })
    }
}

/// Billionths of a decimal text, exactly.
pub(crate) fn decimal(text: &str) -> Result<u64, &'static str> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err("there are no digits");
    }
    if text.starts_with('-') {
        return Err("it is negative");
    }
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err("it has something else than digits and one point");
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > DIGITS {
        return Err("it has more than nine decimal places");
    }
    const TOO_LARGE: &str = "it is too large";
    let number = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>() };
    let whole = number(whole).map_err(|_| TOO_LARGE)?.checked_mul(DOLLAR).ok_or(TOO_LARGE)?;
    let fraction = number(&format!("{fraction:0<DIGITS$}")).map_err(|_| TOO_LARGE)?;
    whole.checked_add(fraction).filter(|sum| *sum <= NanoUsd::MAX.0).ok_or(TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_exactly() {
        let table = [
            ("$1.50", 1_500_000_000, "$1.50"),
            ("1.5", 1_500_000_000, "$1.50"),
            (" $0.37 ", 370_000_000, "$0.37"),
            (".5", 500_000_000, "$0.50"),
            ("3.", 3_000_000_000, "$3.00"),
            ("0", 0, "$0.00"),
            ("0.000000001", 1, "$0.000000001"),
            ("0.0001250000", 125_000, "$0.000125"),
            ("9223372036.854775807", NanoUsd::MAX.0, "$9223372036.854775807"),
        ];
        for (text, nanos, shown) in table {
            assert_eq!(text.parse(), Ok(NanoUsd(nanos)), "{text}");
            assert_eq!(NanoUsd(nanos).to_string(), shown);
            assert_eq!(NanoUsd(nanos).plain(), shown[1..]);
        }
    }

    #[test]
    fn what_is_no_amount_says_why() {
        let table = [
            ("", "no digits"),
            ("$", "no digits"),
            ("-1", "negative"),
            ("1,000", "something else"),
            ("1.2.3", "something else"),
            ("1e3", "something else"),
            ("0.0000000001", "more than nine decimal places"),
            ("9223372036.854775808", "too large"),
            ("99999999999999999999", "too large"),
        ];
        for (text, reason) in table {
            let error = text.parse::<NanoUsd>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("$1.50"), "{text}: {error}");
        }
    }

    #[test]
    fn a_precision_rounds_but_never_shows_something_as_nothing() {
        let table = [
            (0, "$0.00"),
            (1, "<$0.01"),
            (4_999_999, "<$0.01"),
            (5_000_000, "$0.01"),
            (1_994_999_999, "$1.99"),
            (1_995_000_000, "$2.00"),
        ];
        for (nanos, shown) in table {
            assert_eq!(format!("{:.2}", NanoUsd(nanos)), shown);
        }
        assert_eq!(format!("{:.0}", NanoUsd(1_500_000_000)), "$2");
        assert_eq!(format!("{:.4}", NanoUsd(125_000)), "$0.0001");
        assert_eq!(format!("{:>8.2}", NanoUsd(370_000_000)), "   $0.37");
    }

    #[test]
    fn people_see_more_digits_of_what_is_small() {
        let table = [
            (0, "$0.00"),
            (40, "$0.000000040"),
            (12_345, "$0.000012"),
            (4_500_000, "$0.0045"),
            (370_400_000, "$0.37"),
            (76_818_455_000, "$76.82"),
        ];
        for (nanos, shown) in table {
            assert_eq!(NanoUsd(nanos).short(), shown);
        }
    }

    #[test]
    fn a_range_is_shown_so_that_it_contains_what_was_meant() {
        let range = |low, high| CostRange { low: NanoUsd(low), high: NanoUsd(high) }.to_string();
        assert_eq!(range(374_900_000, 415_000_001), "$0.37 to $0.42");
        assert_eq!(range(370_000_000, 370_000_000), "$0.37");
        assert_eq!(range(0, 250_000), "$0.00 to $0.000250");
        assert!(CostRange { low: NanoUsd(1), high: NanoUsd(2) }.contains(NanoUsd(2)));
    }

    #[test]
    fn json_has_dollars_and_loses_nothing() {
        for nanos in [0, 1, 40, 1_250_000, 370_000_001, 9_007_199_254_740_991] {
            let text = serde_json::to_string(&NanoUsd(nanos)).unwrap();
            assert_eq!(serde_json::from_str::<NanoUsd>(&text).unwrap(), NanoUsd(nanos), "{text}");
        }
        assert_eq!(serde_json::to_string(&NanoUsd(370_000_000)).unwrap(), "0.37");
        assert_eq!(serde_json::from_str::<NanoUsd>("2").unwrap(), NanoUsd::dollars(2));
        assert!(serde_json::from_str::<NanoUsd>("-1").is_err());
    }

    #[test]
    fn sums_end_at_the_largest_amount_and_differences_at_nothing() {
        assert_eq!(NanoUsd::MAX.saturating_add(NanoUsd(1)), NanoUsd::MAX);
        assert_eq!(NanoUsd(u64::MAX).saturating_mul(2), NanoUsd::MAX);
        assert_eq!(NanoUsd(1).saturating_sub(NanoUsd(2)), NanoUsd::ZERO);
        assert_eq!([NanoUsd(1), NanoUsd(2)].into_iter().sum::<NanoUsd>(), NanoUsd(3));
    }
}
