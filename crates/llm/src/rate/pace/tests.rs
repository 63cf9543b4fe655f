use super::super::refusals::Refusals;
use super::*;

const PAUSE: Duration = Duration::from_millis(100);

/// A provider's bucket of requests, and somebody who always has another call.
struct Traffic {
    pace: Pace,
    refusals: Refusals,
    calls: u64,
    now: Mark,
    per_s: f64,
    level: f64,
    burst: f64,
    refused: u32,
}

impl Traffic {
    fn new(known: f64, per_s: f64) -> Self {
        let now = Mark { at: Instant::now(), sent: [0.0; 4] };
        let pace = Pace::confirmed(Meter::Requests, known, now);
        let (refusals, burst) = (Refusals::default(), 10.0 * per_s);
        Self { pace, refusals, calls: 0, now, per_s, level: 0.0, burst, refused: 0 }
    }

    /// Runs for this many seconds; answers how many calls were let through.
    fn run(&mut self, seconds: f64) -> f64 {
        let (end, sent) = (self.now.at + Duration::from_secs_f64(seconds), self.now.sent[0]);
        while self.now.at < end {
            let at = self.pace.ready_at(1.0, self.now.at).unwrap_or(self.now.at);
            self.level += self.per_s * super::seconds(self.now.at, at);
            self.level = self.level.min(self.burst);
            self.now.at = at;
            self.pace.take(1.0, self.now);
            self.calls += 1;
            let sent = [self.now.sent[0] + 1.0, 0.0, 0.0, 0.0];
            if self.level >= 1.0 {
                self.level -= 1.0;
                self.now.sent = sent;
            } else {
                self.refused += 1;
                let pause = Duration::from_secs_f64((1.0 - self.level) / self.per_s).max(PAUSE);
                let now = Mark { at, sent };
                let cost = [1.0, 0.0, 0.0, 0.0];
                let refused = Refused { number: self.calls, at, passed: self.now.sent };
                let kind = self.refusals.refused(refused, self.pace.usual());
                self.pace.refuse(Refusal { admitted_at: at, now, cost, told: None, pause }, kind);
            }
        }
        self.now.sent[0] - sent
    }
}

#[test]
fn what_passes_between_two_refusals_is_the_limit() {
    for known in [2.0, 4.0, 8.0, 30.0] {
        let mut traffic = Traffic::new(known, 5.0);
        traffic.run(180.0);
        let limit = traffic.pace.limit();
        assert!((297..=303).contains(&limit), "{limit} of 300 RPM, {known} a second at first");
    }
}

#[test]
fn few_calls_are_refused_and_little_is_left_unused() {
    for per_s in [1.0, 5.0, 100.0] {
        let mut traffic = Traffic::new(per_s, per_s);
        let used = traffic.run(1000.0) / (1000.0 * per_s);
        let refused = f64::from(traffic.refused) / (1000.0 * per_s);
        assert!(used > 0.97 && refused < 0.018, "{per_s} a second: {used} used, {refused} refused");
    }
}

#[test]
fn a_raised_limit_is_found() {
    let mut traffic = Traffic::new(5.0, 5.0);
    traffic.run(100.0);
    (traffic.per_s, traffic.burst) = (20.0, 200.0);
    traffic.run(120.0);
    let limit = traffic.pace.limit();
    assert!((1100..=1300).contains(&limit), "{limit} of 1,200 RPM");
}

#[test]
fn a_limit_that_is_not_in_the_way_is_not_tried() {
    let mut traffic = Traffic::new(5.0, 5.0);
    for _ in 0..1000 {
        traffic.now.at += Duration::from_secs(2);
        traffic.pace.take(1.0, traffic.now);
        traffic.now.sent[0] += 1.0;
    }
    assert_eq!((traffic.pace.trial.is_some(), traffic.pace.limit()), (false, 300));
}

#[test]
fn whoever_lets_nobody_in_shows_no_limit() {
    let mut traffic = Traffic::new(5.0, 0.0);
    let refusal = |admitted_at| {
        let now = Mark { at: admitted_at + PAUSE, sent: [1.0, 0.0, 0.0, 0.0] };
        Refusal { admitted_at, now, cost: [1.0, 0.0, 0.0, 0.0], told: None, pause: PAUSE }
    };
    for minute in 1..60 {
        traffic.pace.mark.sent = [1.0, 0.0, 0.0, 0.0];
        traffic.pace.refuse(refusal(traffic.now.at + Duration::from_secs(60 * minute)), Kind::Together);
    }
    assert_eq!(traffic.pace.limit(), 300);
}

#[test]
fn a_limit_that_a_refusal_tells_is_believed_while_more_was_tried() {
    let mut traffic = Traffic::new(5.0, 5.0);
    let told = |traffic: &mut Traffic| {
        traffic.now.at += Duration::from_secs(1);
        traffic.now.sent[0] += 20.0;
        let (now, cost) = (traffic.now, [1.0, 0.0, 0.0, 0.0]);
        let told = Some((Meter::Requests, 600));
        traffic.pace.refuse(Refusal { admitted_at: now.at, now, cost, told, pause: PAUSE }, Kind::Alone);
        traffic.pace.limit()
    };
    traffic.pace.trial = Some((3.0, traffic.now));
    assert_eq!(told(&mut traffic), 600);
    // Refused all the same: others use the key too.
    assert_eq!(told(&mut traffic), 588);
}

#[test]
fn refusals_of_one_mistake_count_once() {
    let mut traffic = Traffic::new(5.0, 5.0);
    traffic.run(60.0);
    let limit = traffic.pace.limit();
    let (at, cost) = (traffic.pace.refused_at - PAUSE, [1.0, 0.0, 0.0, 0.0]);
    let refusal = Refusal { admitted_at: at, now: traffic.now, cost, told: None, pause: PAUSE };
    let sent = traffic.pace.mark.sent[0];
    assert!(traffic.pace.is_straggler(&refusal));
    traffic.pace.refuse_straggler(refusal);
    assert_eq!((traffic.pace.limit(), traffic.pace.mark.sent[0]), (limit, sent - 1.0));
}
