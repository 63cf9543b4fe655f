//! What people see.

use super::*;

#[test]
fn columns_stay_aligned_with_wide_characters() {
    let mut table = Table::new(&["TITLE", "N"]);
    table.row(vec![Cell::new("文書処理"), Cell::number(7_u32)]);
    table.row(vec![Cell::new("plain"), Cell::number(12_u32)]);
    assert_eq!(table.render(false), "TITLE     N\n文書処理   7\nplain     12\n");
}

#[test]
fn stored_text_cannot_drive_the_terminal() {
    assert_eq!(plain("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
    assert_eq!(plain_lines("a\nb\u{7}"), "a\nb\\u{7}");
}

#[test]
fn durations_have_at_most_two_units() {
    let cases = [
        (0, "0s"),
        (250, "250ms"),
        (1_200, "1s"),
        (65_000, "1m 5s"),
        (3_600_000, "1h"),
        (90_061_000, "1d 1h"),
    ];
    for (millis, text) in cases {
        assert_eq!(duration(Duration::from_millis(millis)), text);
    }
}

#[test]
fn times_are_told_from_now() {
    let now = Timestamp::from_millis(1_000_000);
    assert_eq!(relative(now + Duration::from_secs(5), now), "in 5s");
    assert_eq!(relative(now - Duration::from_secs(5), now), "5s ago");
    assert_eq!(relative(now, now), "now");
}

#[test]
fn sizes_are_rounded_for_people() {
    assert_eq!(size(12), "12 B");
    assert_eq!(size(64_000), "64.0 KB");
    assert_eq!(size(1_500_000_000), "1.5 GB");
}

#[test]
fn numbers_for_people() {
    assert_eq!([7, 1_234, 1_234_567].map(grouped), ["7", "1,234", "1,234,567"]);
    assert_eq!([812, 41_230, 3_140_000].map(short_count), ["812", "41.2k", "3.1M"]);
}
