//! What tokens cost. A dated table is built in, a user's own file lies over it. A model that neither knows has no price:
//! it is "unpriced", which is not the same as free.

use jiff::civil::Date;

use crate::money::NanoUsd;
use crate::types::Usage;

mod table;

pub use table::BadPrices;

/// The table that is built in.
const BUILT_IN: &str = include_str!("prices.toml");
/// Output assumed for a ceiling when neither the request nor the table bounds it.
pub const OUTPUT_TOKENS_DEFAULT_MAX: u64 = 32_768;
/// Prices are for so many tokens.
const TOKENS_PER_PRICE: u128 = 1_000_000;
/// A share of one, in billionths.
const WHOLE: u64 = 1_000_000_000;

/// Price tables in layers; the first that knows a model decides.
#[derive(Debug, Clone)]
pub struct Prices {
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    as_of: Date,
    source: String,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// `*`: any provider.
    provider: String,
    /// Exact, or a prefix that ends in `*`.
    model: String,
    price: Price,
}

/// The price of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// For an input of ordinary length.
    pub rates: Rates,
    /// For the whole call, once its input is longer than so many tokens.
    pub long: Option<(u64, Rates)>,
    /// What a batch pays of it, in billionths.
    batch_share: u64,
    /// Most tokens that the model can answer with, where known.
    pub output_max: Option<u64>,
    /// When the price was looked up.
    pub as_of: Date,
}

/// Prices of a million tokens of each class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Input that no cache knew.
    pub input: NanoUsd,
    /// Output, visible or not.
    pub output: NanoUsd,
    /// Input written to the provider's cache; as `input` where the table is silent.
    pub cache_write: NanoUsd,
    /// Input read from it; as `input` where the table is silent.
    pub cache_read: NanoUsd,
}

impl Prices {
    /// The built-in table.
    pub fn built_in() -> Result<Self, BadPrices> {
        Ok(Self { layers: vec![table::parse(BUILT_IN)?] })
    }

    /// Lays a user's file over this: whatever it says of a model, by name or by pattern, wins.
    pub fn overlay(mut self, text: &str) -> Result<Self, BadPrices> {
        self.layers.insert(0, table::parse(text)?);
        Ok(self)
    }

    /// The price of a model; `None` is "unpriced". Within a layer the exact name wins, then the longest pattern, and a
    /// named provider wins over `*`.
    pub fn find<'a>(&'a self, provider: &str, model: &str) -> Option<&'a Price> {
        let best = |layer: &'a Layer| {
            layer.entries.iter().filter(|entry| entry.fits(provider, model)).max_by_key(|entry| entry.rank())
        };
        self.layers.iter().find_map(best).map(|entry| &entry.price)
    }

    /// When the table in force was looked up: the user's, or else the built-in one.
    pub fn as_of(&self) -> Option<Date> {
        self.layers.first().map(|layer| layer.as_of)
    }

    /// Where each table says its prices come from, the strongest first.
    pub fn sources(&self) -> impl Iterator<Item = (Date, &str)> {
        self.layers.iter().map(|layer| (layer.as_of, layer.source.as_str()))
    }

    /// How old the table in force is. A table from the future is new.
    pub fn age_days(&self, today: Date) -> u32 {
        self.as_of().map_or(0, |as_of| age_days(as_of, today))
    }
}

impl Entry {
    fn fits(&self, provider: &str, model: &str) -> bool {
        let same = match self.model.strip_suffix('*') {
            Some(prefix) => model.starts_with(prefix),
            None => self.model == model,
        };
        same && (self.provider == "*" || self.provider == provider)
    }

    fn rank(&self) -> (bool, usize, bool) {
        (!self.model.ends_with('*'), self.model.len(), self.provider != "*")
    }
}

impl Price {
    /// For engines of one's own. Only for a profile that says so: an unknown price is never this.
    pub fn free() -> Self {
        let (rates, as_of) = (Rates::default(), Date::ZERO);
        Self { rates, long: None, batch_share: WHOLE, output_max: None, as_of }
    }

    /// Whether it is [`Price::free`].
    pub fn is_free(&self) -> bool {
        self.rates == Rates::default()
    }

    /// What a call cost, to the nearest nano-dollar.
    pub fn cost(&self, usage: &Usage, batch: bool) -> NanoUsd {
        let (sum, unit) = self.parts(usage, batch);
        amount(sum.saturating_add(unit / 2) / unit)
    }

    /// What a call costs, in parts of a nano-dollar, and how many of them make one.
    fn parts(&self, usage: &Usage, batch: bool) -> (u128, u128) {
        let rates = self.rates_for(usage.input());
        let classes = [
            (usage.fresh_in, rates.input),
            (usage.cache_write, rates.cache_write),
            (usage.cache_read, rates.cache_read),
            (usage.out, rates.output),
            (usage.reasoning, rates.output),
        ];
        let sum = classes
            .into_iter()
            .map(|(tokens, rate)| u128::from(tokens) * u128::from(rate.0))
            .fold(0, u128::saturating_add);
        let share = u128::from(if batch { self.batch_share } else { WHOLE });
        (sum.saturating_mul(share), TOKENS_PER_PRICE * u128::from(WHOLE))
    }

    /// The most that a call can cost, given its input. All input is taken at the dearest input price, because whether a
    /// cache takes or gives it is not known before. Without `max_tokens` the model may answer as long as it can.
    pub fn ceiling(&self, input_tokens: u64, max_tokens: Option<u32>, choices: u64, batch: bool) -> NanoUsd {
        let rates = self.rates_for(input_tokens);
        let written = rates.cache_write > rates.input;
        let (fresh_in, cache_write) = if written { (0, input_tokens) } else { (input_tokens, 0) };
        let longest = self.output_max.unwrap_or(OUTPUT_TOKENS_DEFAULT_MAX);
        let out = max_tokens.map_or(longest, u64::from).saturating_mul(choices);
        let (sum, unit) = self.parts(&Usage { fresh_in, cache_write, out, ..Usage::default() }, batch);
        amount(sum.div_ceil(unit))
    }

    /// What a batch pays, as a share of one.
    pub fn batch_share(&self) -> f64 {
        // Billionths of one are exact in a double; it is for show.
        self.batch_share as f64 / WHOLE as f64
    }

    /// How old the price is.
    pub fn age_days(&self, today: Date) -> u32 {
        age_days(self.as_of, today)
    }

    fn rates_for(&self, input_tokens: u64) -> &Rates {
        match &self.long {
            Some((over, rates)) if input_tokens > *over => rates,
            Some(_) | None => &self.rates,
        }
    }
}

fn amount(nanos: u128) -> NanoUsd {
    NanoUsd(u64::try_from(nanos).unwrap_or(u64::MAX)).min(NanoUsd::MAX)
}

fn age_days(as_of: Date, today: Date) -> u32 {
    let days = as_of.until(today).map_or(0, |span| span.get_days());
    u32::try_from(days).unwrap_or(0)
}

/// Whose price list applies at an address. Many servers speak somebody else's dialect, so only the providers' own hosts
/// count; elsewhere it is the profile's to name a list.
pub fn provider_of(dialect: &str, base_url: &str) -> Option<&'static str> {
    if dialect == "sim" {
        return Some("sim");
    }
    let rest = base_url.split_once("://").map_or(base_url, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default().split(':').next().unwrap_or_default();
    match host.to_ascii_lowercase().as_str() {
        "api.openai.com" => Some("openai"),
        "api.anthropic.com" => Some("anthropic"),
        "generativelanguage.googleapis.com" => Some("gemini"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
