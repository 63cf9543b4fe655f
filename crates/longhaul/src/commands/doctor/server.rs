//! What `doctor` says about a store that is a server: what its settings may lose, and how to look for one that is away.

use longhaul_queue::store::Caps;
use longhaul_stores::StoreUrl;
use reqwest::Url;

use super::Check;

/// A store that opens, by what it promises.
pub(super) fn promise(caps: &Caps) -> Check {
    let text = format!("{} opens; {}", caps.name, caps.durability);
    match caps.advice {
        Some(advice) => Check::note("store", text, advice),
        None => Check::ok("store", text),
    }
}

/// How to look for a server that cannot be reached; `None` for a store that is none.
pub(super) fn how_to_find(location: &StoreUrl, url: &str) -> Option<String> {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or("localhost");
    let port = |default: u16| url.as_ref().and_then(Url::port).unwrap_or(default);
    match location {
        StoreUrl::Redis(_) => {
            let scheme = url.as_ref().map_or("redis", Url::scheme);
            let place = format!("{host}:{}", port(6379));
            Some(format!(
                "is a server running at {place}? look: redis-cli -u {scheme}://{place} ping; start one: redis-server \
                 --appendonly yes"
            ))
        }
        StoreUrl::Postgres(_) => {
            let port = port(5432);
            Some(format!(
                "is a server running at {host}:{port}? look: pg_isready -h {host} -p {port}; start it: systemctl start \
                 postgresql, or pg_ctl start -D FOLDER"
            ))
        }
        StoreUrl::Sqlite(_) | StoreUrl::Memory => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_away_is_looked_for_where_it_should_be_and_without_its_password() {
        for (url, words) in [
            (
                "redis://:secret@cache.example/3",
                vec!["cache.example:6379", "redis-cli -u redis://cache.example:6379 ping"],
            ),
            ("rediss://cache.example:7000", vec!["redis-cli -u rediss://cache.example:7000 ping"]),
            ("postgres://me:secret@db.example:5433/jobs", vec!["pg_isready -h db.example -p 5433"]),
            ("postgres://db.example/jobs?sslmode=disable", vec!["pg_isready -h db.example -p 5432"]),
        ] {
            let hint = how_to_find(&url.parse().expect("a store"), url).expect("a server");
            assert!(
                words.iter().all(|word| hint.contains(word)) && !hint.contains("secret"),
                "{url}: {hint}"
            );
        }
        assert_eq!(how_to_find(&StoreUrl::Memory, "memory://"), None);
    }
}
