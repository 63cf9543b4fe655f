use super::*;

fn built_in() -> Prices {
    Prices::built_in().expect("the built-in table is sound")
}

fn price(prices: &Prices, provider: &str, model: &str) -> Price {
    prices.find(provider, model).unwrap_or_else(|| panic!("{provider} {model} has a price")).clone()
}

fn usage(fresh_in: u64, out: u64) -> Usage {
    Usage { fresh_in, out, ..Usage::default() }
}

#[test]
fn names_and_dated_versions_are_found_and_others_are_unpriced() {
    let prices = built_in();
    let table = [
        ("openai", "gpt-4o", Some("2.50")),
        ("openai", "gpt-4o-2024-08-06", Some("2.50")),
        ("openai", "gpt-4o-2024-05-13", Some("5.00")),
        ("openai", "gpt-4o-mini", Some("0.15")),
        ("openai", "gpt-4o-mini-2024-07-18", Some("0.15")),
        ("openai", "gpt-5-nano", Some("0.05")),
        ("anthropic", "claude-sonnet-4-5-20250929", Some("3.00")),
        ("anthropic", "claude-opus-4-20250514", Some("15.00")),
        ("anthropic", "claude-opus-4-5-20251101", Some("5.00")),
        ("gemini", "gemini-2.5-flash-lite", Some("0.10")),
        ("sim", "sim-small", Some("0.20")),
        ("openai", "gpt-4o-audio-preview", None),
        ("openai", "gpt-9", None),
        ("openai", "", None),
        ("anthropic", "gpt-4o", None),
        ("ollama", "llama3.2", None),
    ];
    for (provider, model, input) in table {
        let found = prices.find(provider, model).map(|price| price.rates.input);
        let expected = input.map(|text| text.parse().expect("a price"));
        assert_eq!(found, expected, "{provider} {model}");
    }
}

#[test]
fn every_built_in_price_is_plausible() {
    let prices = built_in();
    assert!(prices.layers[0].entries.len() > 80);
    for Entry { provider, model, price } in &prices.layers[0].entries {
        let Rates { input, output, cache_write, cache_read } = price.rates;
        let name = format!("{provider} {model}");
        assert!(input > NanoUsd::ZERO && input < NanoUsd::dollars(100), "{name}");
        assert!(output >= input || model.contains("embed"), "{name}");
        assert!(cache_read <= input && cache_write >= input, "{name}");
        assert!(price.long.is_none_or(|(_, long)| long.input > input && long.output > output), "{name}");
        assert_eq!(price.batch_share, WHOLE / 2, "{name}");
    }
}

#[test]
fn costs_are_exact_to_the_nano_dollar() {
    let prices = built_in();
    let mini = price(&prices, "openai", "gpt-4o-mini");
    let embed = price(&prices, "openai", "text-embedding-3-small");
    let sonnet = price(&prices, "anthropic", "claude-sonnet-4-5");
    let all = Usage { fresh_in: 1_000, cache_write: 2_000, cache_read: 3_000, out: 400, reasoning: 100 };
    // 1,000 x 3.00 + 2,000 x 3.75 + 3,000 x 0.30 + 500 x 15.00 micro-dollars.
    let table = [
        (&mini, usage(0, 0), false, 0),
        (&mini, usage(1, 0), false, 150),
        (&mini, usage(1, 1), false, 750),
        (&mini, usage(21, 0), true, 1_575),
        (&embed, usage(3, 0), false, 60),
        (&embed, usage(3, 0), true, 30),
        (&mini, usage(1_000_000, 1_000_000), false, 750_000_000),
        (&mini, usage(1_000_000, 1_000_000), true, 375_000_000),
        (&sonnet, all, false, 18_900_000),
        (&sonnet, all, true, 9_450_000),
        (&sonnet, usage(200_000, 0), false, 600_000_000),
        (&sonnet, usage(200_001, 1_000), false, 1_200_006_000 + 22_500_000),
        (&sonnet, usage(u64::MAX, 0), false, NanoUsd::MAX.0),
    ];
    for (price, usage, batch, nanos) in table {
        assert_eq!(price.cost(&usage, batch), NanoUsd(nanos), "{usage:?} {batch}");
    }
    let one = embed.cost(&usage(3, 0), false);
    assert_eq!(
        one.saturating_mul(500),
        embed.cost(&usage(1_500, 0), false),
        "many small calls cost what one costs"
    );
}

#[test]
fn a_ceiling_is_never_less_than_the_cost() {
    let prices = built_in();
    let haiku = price(&prices, "anthropic", "claude-haiku-4-5");
    assert_eq!(haiku.ceiling(1_000, Some(100), 1, false), NanoUsd(1_750_000));
    assert_eq!(haiku.ceiling(1_000, Some(100), 1, true), NanoUsd(875_000));
    assert_eq!(haiku.ceiling(0, None, 1, false), NanoUsd(64_000 * 5_000), "it may answer as long as it can");
    assert_eq!(haiku.ceiling(1_000, Some(100), 3, false), NanoUsd(1_250_000 + 3 * 500_000), "three answers");
    let mut random = fastrand::Rng::with_seed(7);
    for Entry { price, .. } in &prices.layers[0].entries {
        for _ in 0..50 {
            let mut tokens = || random.u64(0..300_000);
            let parts = Usage {
                fresh_in: tokens(),
                cache_write: tokens(),
                cache_read: tokens(),
                out: tokens(),
                reasoning: tokens(),
            };
            let max_tokens = Some(u32::try_from(parts.output()).expect("few tokens"));
            for batch in [false, true] {
                assert!(price.ceiling(parts.input(), max_tokens, 1, batch) >= price.cost(&parts, batch));
            }
        }
    }
}

#[test]
fn a_users_file_wins_where_it_speaks() {
    let file = r#"
        as_of = "2026-11-01"
        source = "our contract"
        [provider.openai]
        models = [{ id = "gpt-4o*", input = 1, output = 0.5 }]
        [provider."*"]
        batch = "0.75"
        models = [{ id = "llama*", input = "0", output = "0" }, { id = "llama-big", input = "$0.9", output = "1" }]
    "#;
    let prices = built_in().overlay(file).expect("the file is sound");
    let input = |provider, model| price(&prices, provider, model).rates.input.0;
    assert_eq!(input("openai", "gpt-4o"), 1_000_000_000, "a user's pattern wins over a built-in name");
    assert_eq!(input("openai", "gpt-4o-mini"), 1_000_000_000);
    assert_eq!(price(&prices, "openai", "gpt-4o").rates.output, NanoUsd(500_000_000));
    assert_eq!(price(&prices, "openai", "gpt-4o").batch_share, WHOLE, "no discount is assumed");
    assert_eq!(input("openai", "gpt-5"), 1_250_000_000, "the rest stands");
    assert_eq!(input("anything", "llama-3"), 0, "free because somebody said so");
    assert_eq!(input("anything", "llama-big"), 900_000_000);
    assert_eq!(price(&prices, "anything", "llama-big").batch_share, 750_000_000);
    let today: Date = "2026-11-15".parse().expect("a date");
    assert_eq!(prices.age_days(today), 14);
    assert_eq!(built_in().age_days(today), 99);
    assert_eq!(price(&prices, "openai", "gpt-5").age_days(today), 99);
    assert_eq!(prices.age_days("2020-01-01".parse().expect("a date")), 0);
}

#[test]
fn a_wrong_file_says_where() {
    let one = |fields: &str| {
        format!("as_of = \"2026-01-01\"\n[provider.p]\nmodels = [{{ id = \"m\", output = \"1\", {fields} }}]")
    };
    let table = [
        ("".to_owned(), "as_of"),
        ("as_of = \"soon\"".to_owned(), "2026-08-31"),
        (one("input = \"-1\""), "provider p, model m: input: \"-1\": it is negative"),
        (one("input = \"0.0000000001\""), "more than nine decimal places"),
        (one("input = 1e-10"), "more than nine decimal places"),
        (one("input = true"), "a price such as"),
        (one("input = \"1\", cache_raed = \"1\""), "cache_raed"),
        (one("input = \"1\", batch = \"1.5\""), "at most 1"),
        (one("input = \"1\", long = { over = 1, input = \"x\", output = \"1\" }"), "long: input"),
        (one("input = \"1\"").replace("\"m\"", "\"m*n\""), "at its end"),
        (one("input = \"1\"").replace("\"m\"", "\"\""), "not a name"),
        ("x".repeat(2_000_000), "bytes"),
    ];
    for (text, words) in table {
        let error = built_in().overlay(&text).expect_err(&text).to_string();
        assert!(error.contains(words), "{words:?} is missing in {error:?}");
    }
}

#[test]
fn a_price_list_goes_by_the_providers_own_host() {
    let table = [
        ("openai", "https://api.openai.com/v1", Some("openai")),
        ("openai", "https://API.OpenAI.com:443", Some("openai")),
        ("anthropic", "https://api.anthropic.com", Some("anthropic")),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta", Some("gemini")),
        ("sim", "", Some("sim")),
        ("openai", "http://localhost:11434/v1", None),
        ("openai", "https://api.openai.com.example.org", None),
        ("openai", "https://api.openai.com@example.org/", None),
        ("openai", "https://openrouter.ai/api/v1?x=api.openai.com", None),
    ];
    for (dialect, base_url, provider) in table {
        assert_eq!(provider_of(dialect, base_url), provider, "{base_url}");
    }
}
