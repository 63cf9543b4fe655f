//! Which of some names was probably meant by a misspelt one.

/// The name nearest to `given`, if one is near enough to be meant: half of its letters may differ, as two that
/// changed places in a word of four do.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = given.chars().count();
    names
        .into_iter()
        .map(|name| (distance(given, name), name))
        .filter(|(distance, name)| *distance * 2 <= length.max(name.chars().count()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many letters must be put in, left out or changed, without regard to upper and lower case.
fn distance(one: &str, other: &str) -> usize {
    let lower = |text: &str| text.chars().flat_map(char::to_lowercase).collect::<Vec<char>>();
    let (one, other) = (lower(one), lower(other));
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
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
