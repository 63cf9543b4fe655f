//! Store URLs as people may see them.

/// A URL without the passwords that may stand in it: before the host, or as a parameter.
pub fn shown(url: &str) -> String {
    let hidden = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("pass") => format!("{name}=***"),
        _ => pair.to_owned(),
    };
    let Some((scheme, rest)) = url.split_once("://") else { return shown_keywords(&without_password(url)) };
    let (place, parameters) = rest.split_once('?').map_or((rest, None), |(place, rest)| (place, Some(rest)));
    // Then the mark may be one of the password itself, which begins before it and ends behind.
    if parameters.is_some_and(|parameters| parameters.contains('@')) {
        return format!("{scheme}://***");
    }
    let place = without_password(place);
    let parameters: Option<Vec<String>> = parameters.map(|all| all.split('&').map(hidden).collect());
    let parameters = parameters.map(|all| format!("?{}", all.join("&"))).unwrap_or_default();
    format!("{scheme}://{place}{parameters}")
}

fn without_password(place: &str) -> String {
    match place.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => place.to_owned(),
    }
}

/// The other form that libpq reads, which is no URL: `host=h password=p`. A password there may have quotes and spaces, so
/// nothing behind its name is shown.
fn shown_keywords(text: &str) -> String {
    match text.to_ascii_lowercase().find("pass") {
        Some(at) if text[at..].contains('=') => format!("{}password=***", &text[..at]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_password_is_not_shown_in_whatever_form() {
        for (url, expected) in [
            ("sqlite://a/b.db", "sqlite://a/b.db"),
            ("redis://:secret@h/1", "redis://:***@h/1"),
            (
                "postgres://me:secret@h/d?sslpassword=secret&schema=s",
                "postgres://me:***@h/d?sslpassword=***&schema=s",
            ),
            ("redis://u:s?ecret@h", "redis://***"),
            ("redis://u:s?e=c&r=et@h/1?name=a", "redis://***"),
            ("postgres://u:s@e?cret@h/d", "postgres://***"),
            ("postgres://u:s/e#c@ret@h/d?schema=s", "postgres://u:***@h/d?schema=s"),
            ("u:s?ecret@h", "u:***@h"),
            ("me:secret@h:5432/d", "me:***@h:5432/d"),
            ("postgres:me:secret@h/d", "postgres:***@h/d"),
            ("host=h password=secret dbname=d", "host=h password=***"),
            ("host=h Password = 'secret = secret' dbname=d", "host=h password=***"),
            ("/srv/bypass/x.db", "/srv/bypass/x.db"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
