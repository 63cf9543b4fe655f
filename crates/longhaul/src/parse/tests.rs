//! What people may write, as tables.

use super::*;

#[test]
fn durations_are_read_with_every_unit() {
    let cases = [
        ("250ms", 250),
        ("5s", 5_000),
        ("1h30m", 5_400_000),
        ("1.5d", 129_600_000),
        ("0", 0),
        ("2h 5s", 7_205_000),
    ];
    for (text, millis) in cases {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "5", "5x", "s", "-5s", "1.2.3s", "99999999999d", "é"] {
        let error = duration(text).expect_err(text);
        assert!(error.contains("write 250ms"), "{error}");
    }
}

#[test]
fn sizes_are_decimal_unless_they_say_otherwise() {
    assert_eq!(size("64KB"), Ok(64_000));
    assert_eq!(size("10 MB"), Ok(10_000_000));
    assert_eq!(size("16MiB"), Ok(16 << 20));
    assert_eq!(size("500"), Ok(500));
    for text in ["", "KB", "1.5MB", "-1", "99999999999999GB"] {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn times_may_be_absolute_local_or_relative() {
    let zone = TimeZone::get("Europe/Berlin").expect("bundled");
    let at =
        |text: &str| Timestamp::from_millis(text.parse::<jiff::Timestamp>().expect("test").as_millisecond());
    let now = at("2026-11-15T12:00:00Z");
    let cases = [
        ("2026-11-30T08:00:00Z", "2026-11-30T08:00:00Z"),
        ("2026-11-30T08:00:00+02:00", "2026-11-30T06:00:00Z"),
        ("2h", "2026-11-15T14:00:00Z"),
        ("14:30", "2026-11-15T13:30:00Z"),
        ("08:00", "2026-11-16T07:00:00Z"),
        ("2026-12-01 08:00", "2026-12-01T07:00:00Z"),
    ];
    for (text, expected) in cases {
        assert_eq!(time_in(text, now, &zone), Ok(at(expected)), "{text}");
    }
    for text in ["tomorrow", "25:00", "12:60", ""] {
        assert!(time_in(text, now, &zone).is_err(), "{text}");
    }
}

#[test]
fn retention_survives_the_way_to_text_and_back() {
    for text in ["until-consumed", "until-consumed:30d", "keep:24h,7d", "delete-on-success"] {
        let read = retention(text).expect(text);
        assert_eq!(retention(&retention_text(read)), Ok(read));
    }
    assert!(retention("keep").is_err());
    assert!(retention("forever").is_err());
}

#[test]
fn retry_policies_take_a_cap_and_no_jitter() {
    let policy = retry("exponential:2s,cap=10m,no-jitter").expect("valid");
    assert_eq!(
        policy,
        RetryPolicy::exponential(Duration::from_secs(2)).cap(Duration::from_secs(600)).without_jitter()
    );
    assert_eq!(retry("list:1s,5s"), Ok(RetryPolicy::list([Duration::from_secs(1), Duration::from_secs(5)])));
    for text in ["", "fixed", "fixed:", "fixed:1s,2s", "linear:1s"] {
        assert!(retry(text).is_err(), "{text}");
    }
}
