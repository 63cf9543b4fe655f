//! Which store URL was probably meant by a text that is none. No user, password or parameter is ever repeated.

const REDIS: &str = "redis://localhost:6379";
const POSTGRES: &str = "postgres://USER:PASSWORD@HOST/DATABASE";
const SQLITE: &str = "sqlite://.longhaul/longhaul.db";

/// The nearest right form, if the text has a likeness with one.
pub(crate) fn meant(text: &str) -> Option<String> {
    let text = text.trim();
    if let Some((scheme, rest)) = text.split_once(':')
        && let Some(url) = with_scheme(&scheme.to_ascii_lowercase(), rest)
    {
        return Some(url);
    }
    match text.to_ascii_lowercase().as_str() {
        "" | "sqlite" | "sqlite3" => return Some(SQLITE.to_owned()),
        "redis" => return Some(REDIS.to_owned()),
        "postgres" | "postgresql" => return Some(POSTGRES.to_owned()),
        "memory" | ":memory:" => return Some("memory://".to_owned()),
        _ => {}
    }
    if text.contains("://") {
        return None;
    }
    if text.split_whitespace().any(|pair| pair.starts_with("host=") || pair.starts_with("dbname=")) {
        return Some(of_keywords(text));
    }
    let place = without_user(text);
    let authority = place.split('/').next().unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((_, "6379")) => Some(format!("redis://{authority}")),
        Some((host, "5432")) => Some(format!("postgres://USER@{host}:5432/DATABASE")),
        _ if !text.contains([':', '@', ' ', '=', '?']) && text.contains(['.', '/']) => {
            Some(format!("sqlite://{text}"))
        }
        _ => None,
    }
}

/// For a text that begins like a URL: a wrong number of slashes, large letters, or another program's name.
fn with_scheme(scheme: &str, rest: &str) -> Option<String> {
    let place = without_user(rest.trim_start_matches('/'));
    let place = place.split('?').next().unwrap_or_default();
    let has_user = rest.contains('@');
    match scheme {
        "sqlite" | "sqlite3" | "file" if rest.trim_start_matches('/') == ":memory:" => {
            Some("memory://".to_owned())
        }
        "sqlite" | "sqlite3" | "file" => {
            let path = rest.strip_prefix("//").unwrap_or(rest).split('?').next().unwrap_or_default();
            // An @ may end a password that somebody wrote behind the wrong name.
            let is_path = !path.is_empty() && !rest.contains('@');
            Some(if is_path { format!("sqlite://{path}") } else { SQLITE.to_owned() })
        }
        "redis" | "rediss" if place.is_empty() => Some(REDIS.to_owned()),
        "redis" | "rediss" if has_user => Some(format!("{scheme}://USER:PASSWORD@{place}")),
        "redis" | "rediss" => Some(format!("{scheme}://{place}")),
        "postgres" | "postgresql" if place.is_empty() || rest.starts_with("///") => Some(POSTGRES.to_owned()),
        "postgres" | "postgresql" if has_user => Some(format!("postgres://USER:PASSWORD@{place}")),
        "postgres" | "postgresql" => Some(format!("postgres://USER@{place}")),
        "memory" => Some("memory://".to_owned()),
        _ => None,
    }
}

fn without_user(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, place)| place)
}

/// `host=localhost dbname=jobs`, as libpq reads it.
fn of_keywords(text: &str) -> String {
    let value = |name: &str| {
        let mut pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('\''))
    };
    let port = value("port").map_or_else(String::new, |port| format!(":{port}"));
    let user = if value("password").is_some() { "USER:PASSWORD" } else { "USER" };
    format!(
        "postgres://{user}@{}{port}/{}",
        value("host").unwrap_or("HOST"),
        value("dbname").unwrap_or("DATABASE")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_form_is_told_without_secrets() {
        for (text, expected) in [
            ("", Some(SQLITE)),
            ("sqlite", Some(SQLITE)),
            ("sqlite://", Some(SQLITE)),
            ("sqlite://:memory:", Some("memory://")),
            ("file::memory:", Some("memory://")),
            ("sqlite:jobs.db", Some("sqlite://jobs.db")),
            ("sqlite:/srv/jobs.db", Some("sqlite:///srv/jobs.db")),
            ("file:jobs.db", Some("sqlite://jobs.db")),
            ("file:jobs.db?mode=rwc&key=secret", Some("sqlite://jobs.db")),
            ("sqlite3://me:secret@h/jobs", Some(SQLITE)),
            ("sqlite:me:s?ecret@h/jobs", Some(SQLITE)),
            ("/srv/jobs.db", Some("sqlite:///srv/jobs.db")),
            ("jobs.db", Some("sqlite://jobs.db")),
            ("redis", Some(REDIS)),
            ("redis:/x", Some("redis://x")),
            ("Redis://h", Some("redis://h")),
            ("redis::secret@h:1/2?name=a", Some("redis://USER:PASSWORD@h:1/2")),
            ("localhost:6379", Some("redis://localhost:6379")),
            (":secret@h:6379/0", Some("redis://h:6379")),
            ("localhost:5432", Some("postgres://USER@localhost:5432/DATABASE")),
            ("me:secret@h:5432/jobs", Some("postgres://USER@h:5432/DATABASE")),
            ("postgres", Some(POSTGRES)),
            ("postgres:me:secret@h/jobs", Some("postgres://USER:PASSWORD@h/jobs")),
            ("host=localhost dbname=jobs", Some("postgres://USER@localhost/jobs")),
            (
                "host=h port=5433 user=me password='s e cret'",
                Some("postgres://USER:PASSWORD@h:5433/DATABASE"),
            ),
            ("memory", Some("memory://")),
            (":memory:", Some("memory://")),
            ("memory://x", Some("memory://")),
            ("mysql://me:secret@h/jobs", None),
            ("bogus", None),
        ] {
            assert_eq!(meant(text).as_deref(), expected, "{text}");
        }
    }
}
