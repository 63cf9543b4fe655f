//! The price file: TOML, prices as decimal text in dollars for a million tokens.

use std::collections::BTreeMap;

use jiff::civil::Date;
use serde::Deserialize;

use super::{Entry, Layer, Price, Rates, WHOLE};
use crate::money::{NanoUsd, decimal};

/// A price file is a few kilobytes; more is some other file.
const FILE_BYTES_MAX: usize = 1024 * 1024;

/// A price file that cannot be used, and where it is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the price table cannot be used: {0}")]
pub struct BadPrices(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    as_of: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    provider: BTreeMap<String, Provider>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Provider {
    batch: Option<Decimal>,
    #[serde(default)]
    models: Vec<Model>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    id: Names,
    input: Decimal,
    output: Decimal,
    cache_write: Option<Decimal>,
    cache_read: Option<Decimal>,
    batch: Option<Decimal>,
    output_max: Option<u64>,
    long: Option<Long>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Long {
    over: u64,
    input: Decimal,
    output: Decimal,
    cache_write: Option<Decimal>,
    cache_read: Option<Decimal>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a model's name, or a list of them")]
enum Names {
    One(String),
    Many(Vec<String>),
}

/// Text, or a number as people write it. A double's shortest text is what was typed, so nothing is lost by it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a price such as \"0.15\"")]
enum Decimal {
    Text(String),
    Whole(u64),
    Number(f64),
}

impl Decimal {
    fn billionths(&self) -> Result<u64, String> {
        let text = match self {
            Self::Text(text) => text.trim().trim_start_matches('$').to_owned(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
        };
        decimal(&text).map_err(|reason| format!("{text:?}: {reason}"))
    }
}

pub(super) fn parse(text: &str) -> Result<Layer, BadPrices> {
    if text.len() > FILE_BYTES_MAX {
        return Err(BadPrices(format!("it has {} bytes, more than {FILE_BYTES_MAX}", text.len())));
    }
    let file: File = toml::from_str(text).map_err(|error| BadPrices(error.to_string()))?;
    let as_of: Date = file
        .as_of
        .parse()
        .map_err(|_| BadPrices(format!("as_of is {:?}; write a date like 2026-08-31", file.as_of)))?;
    let mut entries = Vec::new();
    for (provider, list) in file.provider {
        for model in list.models {
            add(&mut entries, (&provider, list.batch.as_ref(), as_of), &model)?;
        }
    }
    Ok(Layer { as_of, source: file.source, entries })
}

fn add(
    entries: &mut Vec<Entry>,
    (provider, batch, as_of): (&str, Option<&Decimal>, Date),
    model: &Model,
) -> Result<(), BadPrices> {
    let names = match &model.id {
        Names::One(name) => std::slice::from_ref(name),
        Names::Many(names) => names.as_slice(),
    };
    let wrong = |what: String| BadPrices(format!("provider {provider}, model {}: {what}", names.join(", ")));
    let odd = |name: &&String| name.is_empty() || name[..name.len() - 1].contains('*');
    if let Some(name) = names.iter().find(odd) {
        return Err(wrong(format!("{name:?} is not a name; a * may only stand at its end")));
    }
    let price = price(model, batch, as_of).map_err(wrong)?;
    let entry =
        |model: &String| Entry { provider: provider.to_owned(), model: model.clone(), price: price.clone() };
    entries.extend(names.iter().map(entry));
    Ok(())
}

fn price(model: &Model, batch: Option<&Decimal>, as_of: Date) -> Result<Price, String> {
    let rates = rates([&model.input, &model.output], [&model.cache_write, &model.cache_read])?;
    let long = match &model.long {
        Some(long) => Some((
            long.over,
            self::rates([&long.input, &long.output], [&long.cache_write, &long.cache_read])
                .map_err(|error| format!("long: {error}"))?,
        )),
        None => None,
    };
    // Without a word about batches they cost what calls cost: a discount is never assumed.
    let batch_share = match model.batch.as_ref().or(batch) {
        Some(share) => share.billionths().map_err(|error| format!("batch: {error}"))?,
        None => WHOLE,
    };
    if batch_share > WHOLE {
        return Err("batch: it is the share that a batch pays, so at most 1".to_owned());
    }
    Ok(Price { rates, long, batch_share, output_max: model.output_max, as_of })
}

fn rates([input, output]: [&Decimal; 2], [write, read]: [&Option<Decimal>; 2]) -> Result<Rates, String> {
    let rate = |name: &str, text: &Decimal| {
        text.billionths().map(NanoUsd).map_err(|error| format!("{name}: {error}"))
    };
    let input = rate("input", input)?;
    let or_input = |name: &str, text: &Option<Decimal>| match text {
        Some(text) => rate(name, text),
        None => Ok(input),
    };
    Ok(Rates {
        input,
        output: rate("output", output)?,
        cache_write: or_input("cache_write", write)?,
        cache_read: or_input("cache_read", read)?,
    })
}
