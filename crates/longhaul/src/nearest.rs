//! Which of some names was probably meant by a misspelt one.

/// The name nearest to `given`, if one is near enough to be meant: half of its letters may differ.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = given.chars().count();
    names
        .into_iter()
        .map(|name| (distance(given, name), name))
        .filter(|(distance, name)| *distance * 2 <= length.max(name.chars().count()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many letters must be put in, left out, changed or swapped with the next, without regard to upper and lower case.
fn distance(one: &str, other: &str) -> usize {
    strsim::osa_distance(&one.to_lowercase(), &other.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let names = ["mail", "reports", "default"];
        for (given, expected) in [
            ("mial", Some("mail")),
            ("mai", Some("mail")),
            ("Mail", Some("mail")),
            ("report", Some("reports")),
            ("deafult", Some("default")),
            ("x", None),
            ("invoices", None),
        ] {
            assert_eq!(nearest(given, names), expected, "{given}");
        }
    }
}
