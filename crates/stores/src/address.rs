//! What the URLs of all servers have in common.

use longhaul_queue::{Error, Result};

/// Refuses a URL whose user or password has a character that ends it too early: what is behind would be taken for the host, the
/// database or a parameter, and shown in messages.
pub(crate) fn check_escaped(url: &str) -> Result<()> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    let early = authority.matches('@').count() > 1 || path.contains(['@', '#']);
    if early || names.into_iter().any(|name| name.contains('@')) {
        return Err(Error::invalid(
            "the store URL has an @ or # out of place; in a user or password write %40 for @, %2F for /, %23 for #, \
             %3F for ?, %3A for :",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_that_end_too_early_are_refused_and_not_shown() {
        let fine = [
            "redis://host",
            "redis://:p%40ss@host:1/2?name=a",
            "postgres://u:p@h/d?options=-c%20a=b@c",
            "postgres:///d",
        ];
        for url in fine {
            assert_eq!(check_escaped(url), Ok(()), "{url}");
        }
        for url in [
            "postgres://u:s@cret@h/d",
            "postgres://u:s#cret@h/d",
            "postgres://u:s/cret@h/d",
            "redis://u:s?cret@h",
        ] {
            let error = check_escaped(url).expect_err("it is refused").to_string();
            assert!(!error.contains("cret") && error.contains("%40"), "{error}");
        }
    }
}
