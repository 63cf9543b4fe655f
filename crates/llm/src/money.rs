//! Money as whole micro-dollars. Nothing here rounds by itself: what cannot be said exactly is refused.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Digits after the point that a micro-dollar has.
const DIGITS: usize = 6;
/// Micro-dollars in a dollar.
const DOLLAR: u64 = 1_000_000;

/// An amount in millionths of a US dollar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MicroUsd(pub u64);

impl MicroUsd {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount that a database's integer holds: nine million million dollars.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Whole dollars.
    pub const fn dollars(dollars: u64) -> Self {
        Self(dollars.saturating_mul(DOLLAR))
    }

    /// The sum, which ends at [`MicroUsd::MAX`]: an amount that large must never wrap around into a small one.
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
}

impl Sum for MicroUsd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

/// Exact, with at least two decimals: `$0.37`, `$12.00`, `$0.000125`. A precision, as in `{:.2}`, rounds to the nearest
/// for people's eyes; what would then look like nothing is told as `<$0.01`.
impl fmt::Display for MicroUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match f.precision() {
            Some(digits) if digits < DIGITS => rounded(self.0, digits),
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

fn exact(micros: u64) -> String {
    let fraction = format!("{:06}", micros % DOLLAR);
    let kept = fraction.trim_end_matches('0').len().max(2);
    format!("${}.{}", micros / DOLLAR, &fraction[..kept])
}

fn rounded(micros: u64, digits: usize) -> String {
    let scale = (0..digits).fold(1, |scale, _| scale * 10);
    let unit = DOLLAR / scale;
    let units = micros.saturating_add(unit / 2) / unit;
    let shown = |units: u64| match digits {
        0 => format!("${units}"),
        _ => format!("${}.{:0digits$}", units / scale, units % scale),
    };
    if units == 0 && micros > 0 { format!("<{}", shown(1)) } else { shown(units) }
}

/// A text that is no amount of money.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an amount in dollars: {reason}; write it like 1.50 or $1.50")]
pub struct NotMoney {
    text: String,
    reason: &'static str,
}

impl FromStr for MicroUsd {
    type Err = NotMoney;

    fn from_str(text: &str) -> Result<Self, NotMoney> {
        decimal(text.trim().trim_start_matches('$'))
            .map(Self)
            .map_err(|reason| NotMoney { text: text.to_owned(), reason })
    }
}

/// Millionths of a decimal text, exactly.
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
        return Err("it is finer than a millionth");
    }
    const TOO_LARGE: &str = "it is too large";
    let number = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>() };
    let whole = number(whole).map_err(|_| TOO_LARGE)?.checked_mul(DOLLAR).ok_or(TOO_LARGE)?;
    let fraction = number(&format!("{fraction:0<DIGITS$}")).map_err(|_| TOO_LARGE)?;
    whole.checked_add(fraction).filter(|sum| *sum <= MicroUsd::MAX.0).ok_or(TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_exactly() {
        let table = [
            ("$1.50", 1_500_000, "$1.50"),
            ("1.5", 1_500_000, "$1.50"),
            (" $0.37 ", 370_000, "$0.37"),
            (".5", 500_000, "$0.50"),
            ("3.", 3_000_000, "$3.00"),
            ("0", 0, "$0.00"),
            ("0.000001", 1, "$0.000001"),
            ("0.0001250000", 125, "$0.000125"),
            ("9223372036854.775807", MicroUsd::MAX.0, "$9223372036854.775807"),
        ];
        for (text, micros, shown) in table {
            assert_eq!(text.parse(), Ok(MicroUsd(micros)), "{text}");
            assert_eq!(MicroUsd(micros).to_string(), shown);
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
            ("0.0000001", "finer"),
            ("9223372036854.775808", "too large"),
            ("99999999999999999999", "too large"),
        ];
        for (text, reason) in table {
            let error = text.parse::<MicroUsd>().expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("$1.50"), "{text}: {error}");
        }
    }

    #[test]
    fn a_precision_rounds_but_never_shows_something_as_nothing() {
        let table = [
            (0, "$0.00"),
            (1, "<$0.01"),
            (4_999, "<$0.01"),
            (5_000, "$0.01"),
            (1_994_999, "$1.99"),
            (1_995_000, "$2.00"),
        ];
        for (micros, shown) in table {
            assert_eq!(format!("{:.2}", MicroUsd(micros)), shown);
        }
        assert_eq!(format!("{:.0}", MicroUsd(1_500_000)), "$2");
        assert_eq!(format!("{:.4}", MicroUsd(125)), "$0.0001");
        assert_eq!(format!("{:>8.2}", MicroUsd(370_000)), "   $0.37");
    }

    #[test]
    fn sums_end_at_the_largest_amount_and_differences_at_nothing() {
        assert_eq!(MicroUsd::MAX.saturating_add(MicroUsd(1)), MicroUsd::MAX);
        assert_eq!(MicroUsd(u64::MAX).saturating_mul(2), MicroUsd::MAX);
        assert_eq!(MicroUsd(1).saturating_sub(MicroUsd(2)), MicroUsd::ZERO);
        assert_eq!([MicroUsd(1), MicroUsd(2)].into_iter().sum::<MicroUsd>(), MicroUsd(3));
    }
}
